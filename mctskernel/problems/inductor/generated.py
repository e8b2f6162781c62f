"""Parse the Python module that torch.compile generates: its Triton kernels, their launches, and the buffers.

Sizes become expressions of a launch plan over the task's dimensions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Size = int | str  # a number, or an expression over dimensions

_SILENT_CALLS = frozenset({"assert_size_stride", "assert_alignment", "get_raw_stream"})
_SILENT_METHODS = frozenset({"clear", "set_device"})
_FUNCTIONS = frozenset({"max", "min", "ceil_div"})

BLOCK = "BLOCK_"  # how the names of a template's block sizes begin, in its kernel and in its grid


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
class View:
    """A buffer or input from an element on."""

    buffer: str
    offset: Size = 0


@dataclass(frozen=True)
class Call:
    """A launch with its arguments; those after the kernel's parameters are the grid's sizes."""

    kernel: str
    arguments: tuple[View | Size | float, ...]


@dataclass(frozen=True)
class Buffer:
    """A buffer that the module allocates, in any memory layout; `zero` says that it is filled with zeros."""

    name: str
    extents: tuple[Size, ...]
    dtype: str
    zero: bool = False


@dataclass(frozen=True)
class GeneratedModule:
    """One call of the module. `inputs` and `outputs` are in order; outputs are names of buffers."""

    kernels: Mapping[str, GeneratedKernel]
    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]


def read_generated(source: str, dimensions: Mapping[str, str]) -> GeneratedModule:
    """Parse a generated module; `dimensions` has the task's dimension of each symbol in sizes. Raises InductorError."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InductorError(f"torch.compile's code is not valid Python: {error}.") from error
    kernels = {name: _kernel(name, text) for name, text in kernel_texts(module).items()}
    body = _Body(kernels, dict(dimensions))
    calls = [each for each in ast.walk(module) if isinstance(each, ast.FunctionDef) and each.name == "call"]
    if not calls:
        raise InductorError("torch.compile's code has no function 'call'.")
    body.read(calls[0].body)
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


def reduction_hint(text: str) -> str:
    """How a kernel's reductions read, in Inductor's words, which finds it out at fixed sizes only.

    INNER where elements that are reduced together lie beside each other, OUTER where those of neighbouring results do.
    """
    beside: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="load"), args=[ast.BinOp(op=ast.Add(), right=index), *_]):
                if {each.id[0] for each in ast.walk(index) if isinstance(each, ast.Name)} >= {"r", "x"}:
                    beside |= {term.id[0] for term in _terms(index) if isinstance(term, ast.Name)}
    return "INNER" if "r" in beside else "OUTER" if "x" in beside else "DEFAULT"


def _terms(index: ast.expr) -> Iterator[ast.expr]:
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add):
        yield from _terms(index.left)
        yield from _terms(index.right)
    else:
        yield index


def kernel_texts(module: ast.Module) -> dict[str, str]:
    found = {}
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="async_compile"), attr="triton"),
                    args=[ast.Constant(), ast.Constant(value=str(text)), *_],
                ),
            ):
                found[name] = text
    return found


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


@dataclass
class _Body:
    """Interprets the statements of `call`; unknown statements are refused. `sizes` are the names of numbers so far."""

    kernels: Mapping[str, GeneratedKernel]
    sizes: dict[str, Size | float]
    inputs: list[str] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)

    def read(self, statements: list[ast.stmt]) -> None:
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
            case ast.Tuple(elts=names) | ast.List(elts=names), ast.Name(id="args"):
                self.inputs = [name.id for name in names if isinstance(name, ast.Name)]
                self.views = {name: View(name) for name in self.inputs}
            case ast.Name(), ast.Call(func=ast.Name(id="get_raw_stream")):
                pass
            case ast.Name(), ast.Call(func=ast.Attribute(value=ast.Name(), attr="size" | "stride"), args=[]):
                pass  # an input's shape, which symbols are read from
            case ast.Name(id=name), _ if name in self.sizes:
                pass  # a symbol, which is a dimension
            case ast.Name(id=name), ast.Call(
                func=ast.Name(id="empty_strided_cuda"), args=[ast.Tuple(elts=extents), _, dtype]
            ):
                sizes = tuple(_size(each, self.sizes) for each in extents)
                self.buffers[name] = Buffer(name, sizes, _text(dtype).removeprefix("torch."))
                self.views[name] = View(name)
            case ast.Name(id=name), _ if (view := self._view(value)) is not None:
                self.views[name] = view
            case ast.Name(id=name), ast.Constant() | ast.BinOp() | ast.Name():
                self.sizes[name] = _number(value, self.sizes)
            case _:
                raise InductorError(_refusal(value))

    def _run(self, call: ast.Call) -> None:
        match call.func:
            case ast.Name(id=name) if name in _SILENT_CALLS:
                return
            case ast.Attribute(attr=name) if name in _SILENT_METHODS:
                return
            case ast.Attribute(value=ast.Name(id=name), attr="zero_") if name in self.buffers and not any(
                View(name) in each.arguments for each in self.calls
            ):
                buffer = self.buffers[name]
                self.buffers[name] = Buffer(name, buffer.extents, buffer.dtype, zero=True)
                return
            case ast.Attribute(value=ast.Name(id=name), attr="run") if name in self.kernels:
                self.calls.append(Call(name, tuple(self._argument(argument) for argument in call.args)))
                return
        raise InductorError(_refusal(call))

    def _argument(self, node: ast.expr) -> View | Size | float:
        view = self._view(node)
        return _number(node, self.sizes) if view is None else view

    def _output(self, node: ast.expr) -> str:
        found = self._view(node)
        if found is None:
            raise InductorError(f"torch.compile's code returns something else than a buffer: {_text(node)}")
        if found.buffer not in self.buffers:
            raise InductorError(f"torch.compile's code returns an input unchanged: {found.buffer}.")
        if found.offset != 0:
            raise InductorError(f"torch.compile's code returns a part of a buffer: {_text(node)}")
        return found.buffer

    def _view(self, node: ast.expr) -> View | None:
        match node:
            case ast.Name(id=name):
                return self.views.get(name)
            case ast.Call(func=ast.Name(id="copy_if_misaligned"), args=[tensor]):
                return self._view(tensor)
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[tensor, _, _, offset]):
                whole = self._view(tensor)
                if whole is not None:
                    further = _size(offset, self.sizes)
                    return View(
                        whole.buffer, further if whole.offset == 0 else f"({whole.offset}) + {further}"
                    )
        return None


def _size(node: ast.expr, names: Mapping[str, Size | float]) -> Size:
    found = _number(node, names)
    if isinstance(found, float):
        raise InductorError(f"torch.compile's code has a size that is no whole number: {_text(node)}")
    return found


def _number(node: ast.expr, names: Mapping[str, Size | float]) -> Size | float:
    """A number, or the expression of a launch plan with symbols replaced."""
    try:
        found = ast.literal_eval(node)
    except ValueError:
        written = ast.unparse(_named(node, names))
        return int(written) if written.isdecimal() else written
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InductorError(f"torch.compile's code passes an unsupported argument: {_text(node)}")
    return found


def _named(node: ast.expr, names: Mapping[str, Size | float]) -> ast.expr:
    match node:
        case ast.Constant(value=int() | float()):
            return node
        case ast.Name(id=name) if name in names:
            return ast.parse(str(names[name]), mode="eval").body
        case ast.Name(id=name) if name.startswith(BLOCK):
            return node
        case ast.UnaryOp(op=ast.USub() as op, operand=operand):
            return ast.UnaryOp(op, _named(operand, names))
        case ast.BinOp(
            left=ast.BinOp(op=ast.Add(), left=ast.Constant(value=int(less)), right=size),
            op=ast.FloorDiv(),
            right=ast.Constant(value=int(divisor)),
        ) if less == divisor - 1:
            return _call("ceil_div", _named(size, names), ast.Constant(divisor))
        case ast.BinOp(
            left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod() as op, right=right
        ):
            return ast.BinOp(_named(left, names), op, _named(right, names))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, *(_named(each, names) for each in arguments))
    raise InductorError(f"torch.compile's code has a number that launch plans don't support: {_text(node)}")


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


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
