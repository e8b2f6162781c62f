"""A PyTorch function as a graph of ATen operators with symbolic sizes, named after the dimensions."""

from __future__ import annotations

import ast
import contextlib
import logging
import math
import operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod

from mctskernel.core.task import Shape, Tensor
from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.decompositions import PlainFunctions, decompositions
from mctskernel.problems.plain_cuda.rules import is_tensor
from mctskernel.problems.problem import blamed

SPECIALISED = "it converts the size to a number"
UNTRACEABLE = "PyTorch can't trace this function:"
"""What may go with fewer dimensions that vary."""


@dataclass(frozen=True)
class Traced:
    """A graph without in-place updates. `inputs` are its placeholders' names in the task, `outputs` its results.

    `expression` gives a size, or a number that depends on sizes, over the task's dimensions; `estimate` evaluates an
    expression at the traced sizes. `again` traces another function of the same tensors. `moved` says in words how the
    graph differs from the function that was traced.
    """

    inputs: Mapping[Node, str]
    outputs: tuple[Node, ...]
    expression: Callable[[Any], sympy.Expr]
    estimate: Callable[[sympy.Expr], float]
    constants: Mapping[Node, Any]
    again: Callable[[Callable[..., Any], Collection[str]], Traced]
    moved: Collection[str]

    def at(self, sizes: Shape) -> Traced:
        """The same with estimates at other sizes."""
        values = {_dimension(name): size for name, size in sizes.items()}
        return replace(self, estimate=lambda value: float(value.xreplace(values)))


def trace(function: Callable[..., Any], inputs: Sequence[Tensor], sizes: Shape) -> Traced:
    """Trace a function on fake tensors, without computing anything. Raises PlainCudaError."""
    return _traced_once(function, tuple(inputs), tuple(sizes.items()))


@lru_cache(1)  # for its outputs and then for its kernels
def _traced_once(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], extents: tuple[tuple[str, int], ...]
) -> Traced:
    symbolic = symbolic_tensors(inputs, dict(extents))
    # PyTorch counts parameters with defaults, of which the lambda has none.
    return _traced(lambda *tensors: function(*tensors), inputs, symbolic, ())  # noqa: PLW0108 - as said above


def _traced(
    function: Callable[..., Any], inputs: Sequence[Tensor], symbolic: Symbolic, moved: Collection[str]
) -> Traced:
    env, mode, tensors, sizes = symbolic.env, symbolic.mode, symbolic.tensors, symbolic.sizes
    own = {symbol.node.expr: _dimension(name) for name, symbol in symbolic.symbols.items()}
    with untraceable(), mode, PlainFunctions():
        module = _graph(function, tensors)
        if any(_is_update(node) for node in module.graph.nodes):
            module = _graph(module, tensors)
    fixed = [own[symbol].name for symbol in own if not env.replace(symbol).free_symbols]
    if fixed:
        raise PlainCudaError(f"This function fixes the dimension '{fixed[0]}': {SPECIALISED}.")

    # Quotients without a remainder, as reshapes take for granted, and the same marked as such.
    env._update_divisible()
    exact = {FloorDiv(*each.args): CleanDiv(*each.args) for each in env.divisible if isinstance(each, Mod)}
    for guard in (each.expr for each in env.guards):
        quotients = guard.atoms(FloorDiv)
        # A quotient times its divisor is the dividend.
        if isinstance(guard, sympy.Eq) and len(quotients) == 1:
            (each,) = quotients
            if sympy.expand((guard.lhs - guard.rhs).xreplace({each: each.args[0] / each.args[1]})) == 0:
                exact[each] = CleanDiv(*each.args)

    def in_fractions(value: sympy.Expr) -> sympy.Expr:
        parts = [in_fractions(each) for each in value.args]
        return parts[0] / parts[1] if value in exact else value.func(*parts) if parts else value

    def expression(value: Any) -> sympy.Expr:
        if isinstance(value, Node):
            value = value.meta["val"]
        return named_expression(value.node.expr if hasattr(value, "node") else sympy.sympify(value))

    @lru_cache(None)
    def named_expression(value: sympy.Expr) -> sympy.Expr:
        found = env.replace(value)
        fraction = sympy.cancel(in_fractions(found)) if exact.keys() & found.atoms(FloorDiv) else found
        found = fraction if fraction.as_numer_denom()[1] == 1 else found
        found = found.xreplace({each: exact[each] for each in found.atoms(FloorDiv) if each in exact})
        # Quotients whose divisor is a factor of the dividend go.
        quotients = {each: sympy.cancel(each.args[0] / each.args[1]) for each in found.atoms(FloorDiv)}
        whole = {each: value for each, value in quotients.items() if value.as_numer_denom()[1] == 1}
        return found.xreplace(whole).xreplace(own)

    hints = {own[symbol.node.expr]: sizes[name] for name, symbol in symbolic.symbols.items()}
    graph = module.graph
    graph.eliminate_dead_code()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    named = dict(zip(placeholders, (tensor.name for tensor in inputs), strict=True))
    constants = {node: getattr(module, node.target) for node in graph.nodes if node.op == "get_attr"}
    _check_updates(graph, named)
    return Traced(
        named,
        _outputs(graph),
        expression,
        lambda value: float(value.xreplace(hints)),
        constants,
        lambda other, moved: _traced(other, inputs, symbolic, moved),
        moved,
    )


def _dimension(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


@dataclass(frozen=True)
class Symbolic:
    """Tensors without values whose sizes are symbols; `symbols` has the symbol of each dimension."""

    env: ShapeEnv
    mode: FakeTensorMode
    symbols: Mapping[str, Any]
    tensors: Sequence[torch.Tensor]
    sizes: Shape

    def hint(self, size: Any) -> int:
        """An expression's value at the sizes that the tensors were made for."""
        known = {symbol.node.expr: self.sizes[name] for name, symbol in self.symbols.items()}
        return int(sympy.sympify(size).xreplace(known))


def symbolic_tensors(inputs: Sequence[Tensor], sizes: Shape, device: str = "cpu") -> Symbolic:
    """Fake tensors for a task's inputs, with the sizes as hints. Raises PlainCudaError."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    symbols = {name: _symbol(env, name, size) for name, size in sizes.items()}
    with mode:
        tensors = [
            torch.empty(
                [_extent(e, symbols) for e in tensor.shape], dtype=getattr(torch, tensor.dtype), device=device
            )
            for tensor in inputs
        ]
    return Symbolic(env, mode, symbols, tensors, sizes)


def _graph(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
    return make_fx(torch.func.functionalize(function, remove="mutations"), decompositions())(*tensors)


def _is_update(node: Node) -> bool:
    """Whether an operator changes a tensor that isn't an input."""
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return False
    changed: Any = node.args[0] if node.args else None
    return bool(node.target._schema.is_mutable) and getattr(changed, "op", "") != "placeholder"


def _symbol(env: ShapeEnv, name: str, size: int) -> Any:
    source = ConstantSource(name)
    symbol = env.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    return env.create_symintnode(symbol, hint=size, source=source)


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _extent(extent: int | str, symbols: Mapping[str, Any]) -> Any:
    """An extent of a task over symbols."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in symbols:
                return symbols[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id="ceil_div"), args=[left, right]):
                return -(-value(left) // value(right))
        raise PlainCudaError(f"The extent '{extent}' isn't made of dimensions by + - * and //.")

    return extent if isinstance(extent, int) else value(ast.parse(extent.strip(), mode="eval").body)


def _outputs(graph: Graph) -> tuple[Node, ...]:
    (returned,) = next(node for node in graph.nodes if node.op == "output").args
    found = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if not found or not all(map(is_tensor, found)):
        raise PlainCudaError("This function must return a tensor, or a tuple of tensors.")
    return found


def _check_updates(graph: Graph, inputs: Mapping[Node, str]) -> None:
    """No input may be changed, except for an integer counter such as that of batch normalisation."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
            changed = node.args[0]
            value = changed.meta["val"]
            if changed in inputs and not (value.dim() == 0 and not value.is_floating_point()):
                raise PlainCudaError(f"This function changes its input '{inputs[changed]}' in place.")


@contextlib.contextmanager
def untraceable() -> Iterator[None]:
    """Trace within this block. Raises PlainCudaError for whatever it raises.

    `math.sqrt`, which converts a size to a number, is PyTorch's symbolic one there.
    """
    plain = math.sqrt

    def root(value: Any) -> Any:
        return torch.sym_sqrt(value) if isinstance(value, torch.SymInt | torch.SymFloat) else plain(value)

    with (
        blamed(UNTRACEABLE, PlainCudaError),
        quiet(),
        torch.no_grad(),
        enable_python_dispatcher(),
        patch.object(math, "sqrt", root),
    ):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTorch's logs and advice: what fails raises, and what doesn't fit a GPU isn't chosen."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
