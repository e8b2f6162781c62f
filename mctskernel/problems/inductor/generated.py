"""Parse the Python module that torch.compile generates: its Triton kernels, their launches, and the buffers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_SILENT_CALLS = frozenset({"assert_size_stride", "assert_alignment", "get_raw_stream"})
_SILENT_METHODS = frozenset({"clear", "set_device"})


class InductorError(ValueError):
    """Generated code that can't become a candidate; the message says why."""


@dataclass(frozen=True)
class GeneratedKernel:
    """A Triton kernel. `grid` is PyTorch's name for its kind of grid, `helpers` are functions in the same text."""

    name: str
    function: ast.FunctionDef
    grid: str
    helpers: tuple[ast.FunctionDef, ...] = ()


@dataclass(frozen=True)
class Call:
    """A launch; `arguments` are names of buffers or inputs, or numbers."""

    kernel: str
    arguments: tuple[str | int | float, ...]


@dataclass(frozen=True)
class Buffer:
    """A buffer that the module allocates, in any memory layout."""

    name: str
    extents: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class GeneratedModule:
    """One call of the module. `inputs` and `outputs` are in order; outputs are names of buffers."""

    kernels: Mapping[str, GeneratedKernel]
    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]


def read_generated(source: str) -> GeneratedModule:
    """Parse a generated module. Raises InductorError for what a launch plan can't express."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InductorError(f"torch.compile's code is not valid Python: {error}.") from error
    kernels = {kernel.name: kernel for kernel in _kernels(module)}
    body = _Body(kernels)
    body.read(_call_function(module).body)
    if not body.calls:
        raise InductorError("torch.compile generated no Triton kernel for this function.")
    used = {call.kernel for call in body.calls}
    return GeneratedModule(
        {name: kernel for name, kernel in kernels.items() if name in used},
        tuple(body.inputs),
        body.buffers,
        tuple(body.calls),
        tuple(body.outputs),
    )


def _kernels(module: ast.Module) -> Iterator[GeneratedKernel]:
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="async_compile"), attr="triton"),
                    args=[ast.Constant(), ast.Constant(value=str(text)), *_],
                ),
            ):
                yield _kernel(name, text)


def _kernel(name: str, text: str) -> GeneratedKernel:
    try:
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InductorError(f"The kernel {name} of torch.compile is not valid Python: {error}.") from error
    own = [function for function in functions if len(function.decorator_list) > 1]
    if len(own) != 1:
        raise InductorError(f"{name} holds {len(own)} kernels; one is expected.")
    helpers = tuple(function for function in functions if function is not own[0])
    return GeneratedKernel(name, own[0], _grid_type(own[0]), helpers)


def _grid_type(function: ast.FunctionDef) -> str:
    for node in ast.walk(function.decorator_list[0]):
        match node:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    match key, value:
                        case ast.Constant(value="grid_type"), ast.Constant(value=str(found)):
                            return found
    return "unknown"


def _call_function(module: ast.Module) -> ast.FunctionDef:
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name="call"):
                return node
    raise InductorError("torch.compile's code has no function 'call'.")


@dataclass
class _Body:
    """Interprets the statements of `call`; unknown statements are refused."""

    kernels: Mapping[str, GeneratedKernel]
    inputs: list[str] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)

    def read(self, statements: list[ast.stmt]) -> None:
        """Read statements in order."""
        for statement in statements:
            match statement:
                case ast.With(body=body):
                    self.read(body)
                case ast.Delete() | ast.Pass():
                    pass
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value)
                case ast.Expr(value=ast.Call() as call):
                    self._run(call)
                case ast.Return(value=ast.Tuple(elts=elements)):
                    self.outputs = [self._output(element) for element in elements]
                case _:
                    raise InductorError(
                        f"torch.compile's code has a statement that launch plans don't support: {_text(statement)}"
                    )

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(elts=names), ast.Name(id="args"):
                self.inputs = [name.id for name in names if isinstance(name, ast.Name)]
            case ast.Name(), ast.Call(func=ast.Name(id="get_raw_stream")):
                pass
            case ast.Name(id=name), ast.Call(
                func=ast.Name(id="empty_strided_cuda"), args=[extents, _, dtype]
            ):
                self.buffers[name] = Buffer(name, self._extents(extents), _text(dtype).removeprefix("torch."))
            case ast.Name(id=name), _ if (number := self._evaluated(value)) is not None:
                self.numbers[name] = number
            case ast.Name(id=name), _ if (buffer := self._buffer(value)) is not None:
                self.aliases[name] = buffer
            case _, ast.Call(func=ast.Name(id="reinterpret_tensor")):
                raise InductorError(f"torch.compile's code uses a part of a buffer: {_text(value)}")
            case _:
                raise InductorError(_refusal(value))

    def _run(self, call: ast.Call) -> None:
        match call.func:
            case ast.Name(id=name) if name in _SILENT_CALLS:
                return
            case ast.Attribute(attr=name) if name in _SILENT_METHODS:
                return
            case ast.Attribute(value=ast.Name(id=name), attr="run") if name in self.kernels:
                self.calls.append(Call(name, tuple(self._argument(argument) for argument in call.args)))
                return
        raise InductorError(_refusal(call))

    def _argument(self, node: ast.expr) -> str | int | float:
        found: str | float | None = self._evaluated(node)
        found = self._buffer(node) if found is None else found
        if found is None:
            raise InductorError(f"torch.compile's code passes an unsupported argument: {_text(node)}")
        return found

    def _output(self, node: ast.expr) -> str:
        found = self._buffer(node)
        if found is None:
            raise InductorError(f"torch.compile's code returns something else than a buffer: {_text(node)}")
        if found not in self.buffers:
            raise InductorError(f"torch.compile's code returns an input unchanged: {found}.")
        return found

    def _buffer(self, node: ast.expr) -> str | None:
        """The buffer or input that an expression is all of."""
        match node:
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[ast.Name(id=name), _, _, offset]) if (
                _number(offset) == 0
            ):
                return self._root(name)
            case ast.Name(id=name):
                return self._root(name)
        return None

    def _root(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _extents(self, node: ast.expr) -> tuple[int, ...]:
        found = [self._evaluated(each) for each in node.elts] if isinstance(node, ast.Tuple) else [None]
        if any(not isinstance(extent, int) for extent in found):
            raise InductorError(f"torch.compile's code allocates a buffer of an unknown size: {_text(node)}")
        return tuple(extent for extent in found if isinstance(extent, int))

    def _evaluated(self, node: ast.expr) -> int | float | None:
        match node:
            case ast.Name(id=name):
                return self.numbers.get(name)
        return _number(node)


def _number(node: ast.expr) -> int | float | None:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _refusal(node: ast.expr) -> str:
    text = _text(node)
    if "extern_kernels." in text:
        name = text.split("extern_kernels.", 1)[1].split("(", 1)[0]
        return f"torch.compile calls a library for a part of this function: extern_kernels.{name}."
    if text.startswith("torch.ops."):
        return f"torch.compile calls PyTorch's own operator for a part of this function: {text.split('(', 1)[0]}."
    return f"torch.compile's code has a statement that launch plans don't support: {text}"


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 100 else f"{text[:97]}..."
