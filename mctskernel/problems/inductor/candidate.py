"""A generated module as a Triton candidate: constants, `@triton.jit` functions and a launch plan."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.launch_plan import MAX_GRID, MAX_LAUNCHES
from mctskernel.problems.inductor.generated import (
    BLOCK,
    Buffer,
    Call,
    GeneratedKernel,
    GeneratedModule,
    InductorError,
    Size,
    View,
)
from mctskernel.problems.inductor.triton_helpers import Helpers, RewrittenNames, jitted, parsed

_GRIDS: Mapping[str, tuple[str, ...]] = {
    "Grid1D": ("x",),
    "Grid2D": ("x", "y"),
    "Grid3D": ("x", "y", "z"),
    "Grid2DWithYZOverflow": ("x", "y"),
    "FixedGrid": (),
}


@dataclass(frozen=True)
class Config:
    """A launch as Inductor's rules choose it: block sizes by parameter, warps and stages."""

    blocks: Mapping[str, int]
    num_warps: int
    num_stages: int


def candidate_source(
    module: GeneratedModule,
    configs: Mapping[str, Config],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    helpers: str,
    note: str = "",
) -> str:
    """The text of a candidate that computes the same as the module.

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
            kernel,
            _config(configs, name),
            [call for call in module.calls if call.kernel == name],
            wanted,
            number if len(module.kernels) > 1 else None,
        )
        for number, (name, kernel) in enumerate(module.kernels.items())
    }
    launches = [kernels[call.kernel].launch(call, buffers) for call in module.calls]
    given = {each.buffer for call in module.calls for each in call.arguments if isinstance(each, View)}
    scratch = [
        _scratch(buffers[name], buffer)
        for name, buffer in module.buffers.items()
        if name in given and name not in module.outputs
    ]
    constants = [line for kernel in kernels.values() for line in kernel.constants]
    local = _without_conflicts([function for kernel in kernels.values() for function in kernel.helpers])
    functions = (*wanted.functions, *local, *(kernel.function for kernel in kernels.values()))
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


def _without_conflicts(helpers: Sequence[ast.FunctionDef]) -> Sequence[ast.FunctionDef]:
    """Each helper once. Raises InductorError for different ones of the same name."""
    found: dict[str, ast.FunctionDef] = {}
    for function in helpers:
        same = found.setdefault(function.name, function)
        if ast.unparse(same) != ast.unparse(function):
            raise InductorError(f"Two kernels have different functions called {function.name}.")
    return tuple(found.values())


class _Rewritten:
    """A kernel with its sizes as constexprs, and its launches, `calls`; `number` makes its constants distinct."""

    def __init__(
        self,
        kernel: GeneratedKernel,
        config: Config,
        calls: Sequence[Call],
        helpers: Helpers,
        number: int | None,
    ) -> None:
        if kernel.grid not in _GRIDS:
            raise InductorError(f"{kernel.name} has a grid that launch plans don't support: {kernel.grid}.")
        self._grid = kernel.grid
        self._config = config
        self.function = jitted(kernel.function)
        self._parameters = [p.arg for p in self.function.args.args if p.annotation is None]
        given = [self._given(call) for call in calls]
        blocks = {
            p.arg: config.blocks.get(p.arg) for p in self.function.args.args if p.annotation is not None
        }
        if missing := [block for block, value in blocks.items() if value is None]:
            raise InductorError(f"The value of {missing[0]} in PyTorch's launch of {kernel.name} is unknown.")
        own = {s: found for s in self.function.body if (found := _own_block(s)) is not None}
        blocks |= dict(own.values())
        self.function.body = [s for s in self.function.body if s not in own]
        suffix = "" if number is None else f"_{number}"
        self._blocks = {block: block + suffix for block in blocks}
        self.constants = [f"{block}{suffix} = {value}" for block, value in blocks.items()]
        self._pointers = [name for name in self._parameters if isinstance(given[0][name], View)]
        sizes = [name for name in self._parameters if name not in self._pointers]
        self._offset = [
            name
            for name in self._pointers
            if any(isinstance(view := each[name], View) and view.offset != 0 for each in given)
        ]
        self.function.body = [
            _settled(statement, sizes) for statement in self.function.body if not _is_size(statement, sizes)
        ]
        shifts = [f"{name} = {name} + {name}_offset" for name in self._offset]
        self.function.body = [*ast.parse("\n".join(shifts)).body, *self.function.body]
        self._names = _dimension_names(self.function, sizes, given)
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name):
                node.id = self._names.get(node.id, node.id)
        self.function = _Sizes(self._names.values()).visited(_Divisions().visit(self.function))
        own_helpers = [jitted(each) for each in kernel.helpers]
        for each in (self.function, *own_helpers):
            each.body = [s for s in each.body if not _is_assertion(s)] or [ast.Pass()]
        rewriting = RewrittenNames(helpers)
        self.helpers = tuple(map(rewriting.visit_FunctionDef, own_helpers))
        self.function = rewriting.visit_FunctionDef(self.function)
        self.function.body = _without_unused(_with_one_name(self.function))
        read = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)}
        self._sizes = {
            self._names[name]: name for name in sizes if self._names[name] in read
        }  # one of those that have the same name
        constexprs = [*self._blocks, *self._sizes, *(f"{name}_offset" for name in self._offset)]
        parameters = ", ".join((*self._pointers, *(f"{name}: tl.constexpr" for name in constexprs)))
        self.function.args = parsed(f"def f({parameters}): pass").args

    def launch(self, call: Call, buffers: Mapping[str, str]) -> str:
        given = self._given(call)
        views = {name: view for name, view in given.items() if isinstance(view, View)}
        constexprs = self._blocks | {name: given[parameter] for name, parameter in self._sizes.items()}
        constexprs |= {f"{name}_offset": views[name].offset for name in self._offset}
        written = ", ".join(f"{name} = {_toml(value)}" for name, value in constexprs.items())
        return "\n".join(
            (
                "[[launch]]",
                f'kernel = "{self.function.name}"',
                f"grid = {_toml(list(self._grid_of(call, given)))}",
                f"args = {_toml([buffers.get(view.buffer, view.buffer) for view in views.values()])}",
                f"constexprs = {{ {written} }}",
                f"num_warps = {self._config.num_warps}",
                f"num_stages = {self._config.num_stages}",
                "",
            )
        )

    def _given(self, call: Call) -> dict[str, View | Size | float]:
        own, grid = call.arguments[: len(self._parameters)], call.arguments[len(self._parameters) :]
        if len(own) != len(self._parameters) or len(grid) != (3 if self._grid == "FixedGrid" else 0):
            raise InductorError(f"{call.kernel} is called with {len(call.arguments)} arguments.")
        return dict(zip(self._parameters, own, strict=True))

    def _grid_of(self, call: Call, given: Mapping[str, View | Size | float]) -> Iterator[Size | float]:
        if self._grid == "FixedGrid":
            for extent in call.arguments[len(self._parameters) :]:
                assert not isinstance(extent, View)  # noqa: S101 - as PyTorch passes them
                yield self._named(extent) if isinstance(extent, str) else extent
            return
        for axis in _GRIDS[self._grid]:
            size, block = given.get(f"{axis}numel"), self._blocks.get(f"{axis.upper()}BLOCK")
            if not isinstance(size, int | str):
                raise InductorError(f"{call.kernel} has a grid of an unknown size in {axis}.")
            extent = size if block is None else f"ceil_div({size}, {block})"
            if axis == "y" and self._grid == "Grid2DWithYZOverflow":
                along_z = f"ceil_div({extent}, {MAX_GRID[1]})"
                yield f"ceil_div({extent}, {along_z})"
                extent = along_z
            yield extent

    def _named(self, extent: str) -> str:
        """An extent of the grid with the names that this kernel's block sizes have in the candidate."""
        found = ast.parse(extent, mode="eval")
        for node in ast.walk(found):
            if isinstance(node, ast.Name):
                node.id = self._blocks.get(node.id, node.id)
        return ast.unparse(found)


def _own_block(statement: ast.stmt) -> tuple[str, int] | None:
    """A block size that a template sets in its kernel."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int(value))) if name.startswith(
            BLOCK
        ):
            return name, value
    return None


class _Divisions(ast.NodeTransformer):
    """Writes numbers of blocks as `tl.cdiv`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """`(size + BLOCK - 1) // BLOCK`, or anything else as it is."""
        self.generic_visit(node)
        match node:
            case ast.BinOp(
                left=ast.BinOp(
                    left=ast.BinOp(left=size, op=ast.Add(), right=ast.Name(id=added)),
                    op=ast.Sub(),
                    right=ast.Constant(value=1),
                ),
                op=ast.FloorDiv(),
                right=ast.Name(id=block),
            ) if added == block:
                return ast.Call(ast.parse("tl.cdiv", mode="eval").body, [size, node.right], [])
        return node


def _dimension_names(
    function: ast.FunctionDef, sizes: Sequence[str], given: Sequence[Mapping[str, View | Size | float]]
) -> dict[str, str]:
    """New names for sizes: that of a dimension where every launch passes it, and the kernel has no other such name."""
    taken = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    taken |= {parameter.arg for parameter in function.args.args}
    names = {}
    for name in sizes:
        (first, *others) = {each[name] for each in given}
        is_free = isinstance(first, str) and first.isidentifier() and first not in taken
        names[name] = str(first) if is_free and not others else name
    return names


_LONG = 40  # longer expressions of sizes, in characters, get a name


class _Sizes(ast.NodeTransformer):
    """Names long expressions of sizes, and makes sizes values where an operation needs one."""

    def __init__(self, sizes: Collection[str]) -> None:
        self._sizes = sizes
        self._named: dict[str, str] = {}

    def visited(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """The function, with the names defined at the top of its body."""
        self.generic_visit(function)
        definitions = [f"{name}: tl.constexpr = {text}" for text, name in self._named.items()]
        function.body = [*ast.parse("\n".join(definitions)).body, *function.body]
        return function

    def visit(self, node: ast.AST) -> ast.AST:
        """An expression of sizes alone, or anything that may hold some."""
        size = self._size(node)
        if size is None:
            node = self.generic_visit(node)
            match node:
                case ast.Call(func=ast.Attribute(value=ast.expr() as value, attr="to") as method) if (
                    self._size(value)
                ):
                    method.value = _value(value)
                case ast.Call(func=ast.Attribute(attr="broadcast_to"), args=[value, *others]) if self._size(
                    value
                ):
                    node.args = [_value(value), *others]
            return node
        text = ast.unparse(size)
        if len(text) <= _LONG:
            return size
        return ast.Name(self._named.setdefault(text, f"size_{len(self._named)}"), ast.Load())

    def _size(self, node: ast.AST) -> ast.expr | None:
        """The node, if it is arithmetic of sizes and numbers, and of a size at all."""
        found = self._arithmetic(node)
        names = {each.id for each in ast.walk(found) if isinstance(each, ast.Name)} if found else set()
        return found if names else None

    def _arithmetic(self, node: ast.AST) -> ast.expr | None:
        match node:
            case ast.Constant(value=int()):
                return node
            case ast.Name(id=name, ctx=ast.Load()) if name in self._sizes or name in self._named.values():
                return node
            case ast.UnaryOp(op=ast.USub(), operand=operand) if inner := self._arithmetic(operand):
                return ast.UnaryOp(node.op, inner)
            case ast.Call(func=ast.Attribute(attr="div_floor_integer"), args=[left, right]):
                return self._arithmetic(ast.BinOp(left, ast.FloorDiv(), right))
            case ast.BinOp(
                left=left,
                op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod() as op,
                right=right,
            ):
                first, second = self._arithmetic(left), self._arithmetic(right)
                return ast.BinOp(first, op, second) if first and second else None
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                first, second = self._arithmetic(left), self._arithmetic(right)
                return ast.Compare(first, [op], [second]) if first and second else None
        return None


def _value(size: ast.expr) -> ast.expr:
    return ast.parse(f"tl.full([], {ast.unparse(size)}, tl.int64)", mode="eval").body


def _is_size(statement: ast.stmt, sizes: Sequence[str]) -> bool:
    """Whether a statement gives a parameter the number that is passed for it: `xnumel = 8192`."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()):
            return name in sizes
    return False


def _settled(statement: ast.stmt, sizes: Sequence[str]) -> ast.stmt:
    """Make a mask constant where the size is a multiple of the block, as PyTorch does where it knows the size."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=mask)], value=ast.Compare(left=ast.Name(id=index))) if (
            prefix := mask.removesuffix("mask")
        ) != mask and f"{prefix}numel" in sizes:
            full = ast.parse(f"{mask} = tl.full({index}.shape, True, tl.int1)").body
            test = ast.parse(f"{prefix}numel % {prefix.upper()}BLOCK == 0", mode="eval").body
            return ast.If(test, full, [statement])
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
        calls = any(isinstance(each, ast.Call) for each in ast.walk(node.value))
        match node.targets:
            case [ast.Name(id=name)] if name not in self._read and not calls:
                return None
        return node


def _is_assertion(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="device_assert"))):
            return True
    return False


def _scratch(name: str, buffer: Buffer) -> str:
    dtype = "uint8" if buffer.dtype == "bool" else buffer.dtype
    if dtype not in DTYPE_BYTES:
        raise InductorError(
            f"torch.compile uses intermediate values of {dtype}, which scratch buffers don't support."
        )
    shape, filled = _toml(list(buffer.extents) or [1]), "zero = true\n" if buffer.zero else ""
    return f'\n[[scratch]]\nname = "{name}"\ndtype = "{dtype}"\nshape = {shape}\n{filled}'


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
