"""A generated module as a Triton candidate: constants, `@triton.jit` functions and a launch plan."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.launch_plan import MAX_LAUNCHES
from mctskernel.problems.inductor.generated import Call, GeneratedKernel, GeneratedModule, InductorError
from mctskernel.problems.inductor.sizes import SMALLEST, Names

_GRIDS: Mapping[str, tuple[str, ...]] = {"Grid1D": ("x",), "Grid2D": ("x", "y"), "Grid3D": ("x", "y", "z")}
_LARGEST = 1 << 53
"""Larger numbers are no sizes, and not exact as floats."""


@dataclass(frozen=True)
class Config:
    """The launch that PyTorch's autotuner chose: block sizes by parameter, warps and stages."""

    blocks: Mapping[str, int]
    num_warps: int
    num_stages: int


def candidate_source(
    module: GeneratedModule,
    configs: Mapping[str, Config],
    names: Names,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    helpers: str,
    note: str = "",
) -> str:
    """The text of a candidate that computes the same as the module, at any sizes of the dimensions.

    `inputs` and `outputs` are the task's names in the order of the module's; `helpers` is the text of PyTorch's
    helper functions. Raises InductorError.
    """
    if len(module.calls) > MAX_LAUNCHES:
        raise InductorError(
            f"torch.compile launches {len(module.calls)} kernels; a plan has at most {MAX_LAUNCHES}."
        )
    buffers = _buffer_names(module, inputs, outputs)
    wanted = Helpers(helpers)
    kernels = {
        name: _Rewritten(
            kernel, _config(configs, name), names, wanted, number if len(module.kernels) > 1 else None
        )
        for number, (name, kernel) in enumerate(module.kernels.items())
    }
    launches = [kernels[call.kernel].launch(call, buffers, names) for call in module.calls]
    own = {name: buffer for name, buffer in module.buffers.items() if name not in module.outputs}
    given = {argument for call in module.calls for argument in call.arguments}
    scratch = [
        _scratch(buffers[name], _dtype(buffer.dtype), [names.expression(n) or n for n in buffer.extents])
        for name, buffer in own.items()
        if name in given
    ]
    constants = [line for kernel in kernels.values() for line in kernel.constants]
    local = {function.name: function for kernel in kernels.values() for function in kernel.helpers}
    functions = (*wanted.functions, *local.values(), *(kernel.function for kernel in kernels.values()))
    text = "\n\n\n".join(ast.unparse(ast.fix_missing_locations(function)) for function in functions)
    imports = ["import triton", "import triton.language as tl"]
    if "libdevice." in text:
        imports.append("from triton.language.extra import libdevice")
    head = '"""\n' + "\n".join((*launches, *scratch)) + '"""\n\n' + "\n".join(imports)
    return "\n\n".join((head, "\n".join(constants), (f"# {note}\n" if note else "") + "\n" + text)) + "\n"


def _buffer_names(module: GeneratedModule, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    if len(module.inputs) != len(inputs):
        raise InductorError(
            f"torch.compile's code takes {len(module.inputs)} tensors, the function {len(inputs)}."
        )
    if len(module.outputs) != len(outputs) or len(set(module.outputs)) != len(outputs):
        raise InductorError(
            f"torch.compile's code returns {len(set(module.outputs))} different buffers for {len(outputs)} output(s)."
        )
    taken = {*inputs, *outputs}
    own = {name: name if name not in taken else f"{name}_scratch" for name in module.buffers}
    return (
        own | dict(zip(module.inputs, inputs, strict=True)) | dict(zip(module.outputs, outputs, strict=True))
    )


def _config(configs: Mapping[str, Config], name: str) -> Config:
    if name not in configs:
        raise InductorError(f"PyTorch's launch configuration of {name} is unknown.")
    return configs[name]


class _Rewritten:
    """A kernel with its sizes as parameters. `number` makes its constants distinct from those of other kernels."""

    def __init__(
        self, kernel: GeneratedKernel, config: Config, names: Names, helpers: Helpers, number: int | None
    ) -> None:
        if kernel.grid not in _GRIDS:
            raise InductorError(f"{kernel.name} has a grid that launch plans don't support: {kernel.grid}.")
        self._config = config
        self._suffix = "" if number is None else f"_{number}"
        self._axes = _GRIDS[kernel.grid]
        self.function = _jitted(kernel.function)
        self._sizes = _taken_sizes(self.function)
        self._parameters = [p.arg for p in self.function.args.args if p.annotation is None]
        blocks = [p.arg for p in self.function.args.args if p.annotation is not None]
        missing = [block for block in blocks if block not in config.blocks]
        if missing:
            raise InductorError(f"The value of {missing[0]} in PyTorch's launch of {kernel.name} is unknown.")
        persistent = _taken_blocks(self.function)
        own_helpers = [_jitted(each) for each in kernel.helpers]
        for each in (self.function, *own_helpers):
            each.body = [s for s in each.body if not _is_assertion(s)] or [ast.Pass()]
        rewriting = RewrittenNames(helpers)
        sized = _Sized(names)
        self.helpers = tuple(map(rewriting.visit_FunctionDef, own_helpers))
        self.function = rewriting.visit_FunctionDef(self.function)
        self.function.body = [
            _settled(sized.visit(statement), self._sizes, names) for statement in self.function.body
        ]
        self.function.body = _without_unused(_with_one_name(self.function))
        self._constexprs = {block: block + self._suffix for block in blocks}
        self._constexprs |= {block: f"next_pow2({self._numel(block, names)})" for block in persistent}
        read = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)}
        self._constexprs |= {name: name for name in sorted(read & sized.names)}
        self.constants = [f"{block}{self._suffix} = {config.blocks[block]}" for block in blocks]
        given = [name for name in self._parameters if name not in self._sizes]
        parameters = ", ".join((*given, *(f"{name}: tl.constexpr" for name in self._constexprs)))
        self.function.args = _function(f"def f({parameters}): pass").args

    def launch(self, call: Call, buffers: Mapping[str, str], names: Names) -> str:
        """The TOML table of a launch."""
        if len(call.arguments) != len(self._parameters):
            raise InductorError(f"{call.kernel} is called with {len(call.arguments)} arguments.")
        given = dict(zip(self._parameters, call.arguments, strict=True))
        args = [
            buffers.get(value, value) if isinstance(value, str) else _expression(value, names)
            for name, value in given.items()
            if name not in self._sizes
        ]
        grid = []
        for axis in self._axes:
            size = self._sizes.get(f"{axis}numel", given.get(f"{axis}numel"))
            if not isinstance(size, int):
                raise InductorError(f"{call.kernel} has a grid of an unknown size in {axis}.")
            block = f"{axis.upper()}BLOCK"
            extent = _expression(size, names)
            grid.append(
                f"ceil_div({extent}, {self._constexprs[block]})" if block in self._constexprs else extent
            )
        constexprs = ", ".join(f"{name} = {_toml(value)}" for name, value in self._constexprs.items())
        return "\n".join(
            (
                "[[launch]]",
                f'kernel = "{self.function.name}"',
                f"grid = {_toml(grid)}",
                f"args = {_toml(args)}",
                f"constexprs = {{ {constexprs} }}",
                f"num_warps = {self._config.num_warps}",
                f"num_stages = {self._config.num_stages}",
                "",
            )
        )

    def _numel(self, block: str, names: Names) -> str | float:
        size = self._sizes.get(f"{block.removesuffix('BLOCK').lower()}numel")
        if size is None:
            raise InductorError(f"{self.function.name} has a fixed {block} for an unknown size.")
        return _expression(size, names)


class _Sized(ast.NodeTransformer):
    """Replaces numbers that are sizes by expressions over dimensions."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.names: set[str] = set()

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A number that may be a size."""
        value = node.value
        if not isinstance(value, int | float) or not (SMALLEST <= value < _LARGEST and value == int(value)):
            return node
        expression = self._names.expression(int(value))
        if expression is None:
            return node
        found = ast.parse(expression, mode="eval").body
        self.names |= {each.id for each in ast.walk(found) if isinstance(each, ast.Name)}
        return found


def _settled(statement: ast.stmt, sizes: Mapping[str, int], names: Names) -> ast.stmt:
    """Make a mask constant where the size is a multiple of the block.

    PyTorch leaves such masks out, which makes a difference to the compiler.
    """
    match statement:
        case ast.Assign(targets=[ast.Name(id=mask)], value=ast.Compare(left=ast.Name(id=index))) if (
            prefix := mask.removesuffix("mask")
        ) != mask and f"{prefix}numel" in sizes:
            size, block = _expression(sizes[f"{prefix}numel"], names), f"{prefix.upper()}BLOCK"
            full = ast.parse(f"{mask} = tl.full({index}.shape, True, tl.int1)").body
            return ast.If(ast.parse(f"{size} % {block} == 0", mode="eval").body, full, [statement])
    return statement


def _with_one_name(function: ast.FunctionDef) -> ast.FunctionDef:
    """Replace second names of a block (`RBLOCK: tl.constexpr = R0_BLOCK`) by the first."""
    names: dict[str, str] = {}
    kept: list[ast.stmt] = []
    for statement in function.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=second), value=ast.Name(id=first)):
                names[second] = first
            case _:
                kept.append(statement)
    function.body = kept
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return function


def _without_unused(function: ast.FunctionDef) -> list[ast.stmt]:
    """The body without unused assignments, which every generated kernel has."""
    before = ""
    while (text := ast.unparse(function)) != before:
        before = text
        read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        _Remover(read).visit(function)
    return function.body


class _Remover(ast.NodeTransformer):
    """Removes assignments, without calls, of names that aren't read."""

    def __init__(self, read: set[str]) -> None:
        self._read = read

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        """Keep or remove an assignment."""
        calls = any(isinstance(each, ast.Call) for each in ast.walk(node.value))
        match node.targets:
            case [ast.Name(id=name)] if name not in self._read and not calls:
                return None
        return node


def _taken_sizes(function: ast.FunctionDef) -> dict[str, int]:
    """The sizes that a kernel assigns to its parameters: `xnumel = 8192`."""
    parameters = {parameter.arg for parameter in function.args.args}
    found: dict[str, int] = {}
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))):
                if name in parameters:
                    found[name] = value
    return found


def _taken_blocks(function: ast.FunctionDef) -> list[str]:
    """Remove and return blocks as large as their axis: `R0_BLOCK: tl.constexpr = 1024`."""
    found, kept = [], []
    for statement in function.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int())) if name.endswith(
                "_BLOCK"
            ):
                found.append(name)
            case _:
                kept.append(statement)
    function.body = kept
    return found


def _is_assertion(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="device_assert"))):
            return True
    return False


def _jitted(function: ast.FunctionDef) -> ast.FunctionDef:
    """A copy of a function, decorated with `@triton.jit` alone."""
    copied = _function(ast.unparse(function))
    copied.decorator_list = [ast.parse("triton.jit", mode="eval").body]
    return copied


def _function(text: str) -> ast.FunctionDef:
    (found,) = ast.parse(text).body
    assert isinstance(found, ast.FunctionDef)  # noqa: S101 - as it was written
    return found


def _dtype(name: str) -> str:
    dtype = "uint8" if name == "bool" else name
    if dtype not in DTYPE_BYTES:
        raise InductorError(
            f"torch.compile uses intermediate values of {name}, which scratch buffers don't support."
        )
    return dtype


def _expression(value: float, names: Names) -> str | int | float:
    expression = names.expression(value) if isinstance(value, int) and value >= SMALLEST else None
    return value if expression is None else expression


def _scratch(name: str, dtype: str, shape: Sequence[str | int]) -> str:
    return f'\n[[scratch]]\nname = "{name}"\ndtype = "{dtype}"\nshape = {_toml(list(shape) or [1])}\n'


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


PREFIX = "inductor_"

_REPLACEMENTS = """
def select_one(x, mask, dim, keep_dims=False):
    return tl.sum(tl.where(mask, x, 0), dim, keep_dims=keep_dims)

def any(a, dim):
    return tl.max(a.to(tl.int32), dim) > 0
"""
"""Replacements of helpers that use parts of Triton which candidates may not."""


class Helpers:
    """PyTorch's helper functions, and those that the candidate needs so far."""

    def __init__(self, source: str) -> None:
        """`source` is the text of PyTorch's `torch._inductor.runtime.triton_helpers`."""
        self.known = _functions(source) | _functions(_REPLACEMENTS)
        self._wanted: dict[str, ast.FunctionDef] = {}

    @property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """The needed functions, each after those that it calls."""
        return tuple(self._wanted.values())

    def want(self, name: str) -> str:
        """Add a helper; returns its name in the candidate. Raises InductorError for an unknown one."""
        if name not in self._wanted:
            function = self.known.get(name)
            if function is None:
                raise InductorError(f"The generated code calls the helper '{name}', which is unknown.")
            self._wanted[name] = self._inlined(function)
        return PREFIX + name

    def _inlined(self, function: ast.FunctionDef) -> ast.FunctionDef:
        copied = _jitted(function)
        for parameter in copied.args.args:
            if parameter.annotation is not None and ast.unparse(parameter.annotation) != "tl.constexpr":
                parameter.annotation = None
        if ast.get_docstring(copied) is not None:
            del copied.body[0]
        copied.name = PREFIX + function.name
        names = (node for node in ast.walk(copied) if isinstance(node, ast.Name))
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        local.update(parameter.arg for parameter in copied.args.args)
        return RewrittenNames(self, frozenset(local)).visit_FunctionDef(copied)


class RewrittenNames(ast.NodeTransformer):
    """Replaces calls of helpers and of Triton's math module by those of a candidate."""

    def __init__(self, helpers: Helpers, local: frozenset[str] = frozenset()) -> None:
        self._helpers = helpers
        self._local = local

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function, its decorators left alone."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`triton_helpers.f` becomes a function of the candidate, `tl_math.f` becomes `tl.math.f`."""
        match node.value:
            case ast.Name(id="triton_helpers"):
                return ast.Name(self._helpers.want(node.attr), ast.Load())
            case ast.Name(id="tl_math" | "math"):
                node.value = ast.Attribute(ast.Name("tl", ast.Load()), "math", ast.Load())
                return node
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A helper that another helper uses."""
        if isinstance(node.ctx, ast.Load) and node.id not in self._local and node.id in self._helpers.known:
            return ast.Name(self._helpers.want(node.id), ast.Load())
        return node


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
