"""Loops over time that a module writes out: steps as a recurrent layer, and what is alike for all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.plain_cuda.decompositions import product_of_rows
from mctskernel.problems.plain_cuda.recurrent import MOST_BLOCKS, REGISTERS, THREADS, recurrent
from mctskernel.problems.plain_cuda.rules import axis, base_name, behind, is_tensor
from mctskernel.problems.plain_cuda.tracing import Traced

FEWEST, MOST_STATES = 4, 1 << 10
"""Steps that a loop has at least; rows of a batch beyond which products of their own are faster."""

_KINDS = {"tanh": "Tanh", "relu": "Relu"}

_Term = tuple[
    Node, Node, int, Any
]  # a product's operands, and from where on it has how many rows of the second one


def layered(traced: Traced) -> Traced:
    """The same function with recurrent layers for loops whose steps are tanh(x W + h U + b), or relu of that."""
    same = _same(traced)
    loops = [each for each in _loops(traced, same) if _is_layer(each, traced)]
    with suppress(PlainCudaError):
        return traced.again(_Layered(traced, loops, same).run, traced.moved) if loops else traced
    return traced


def _same(traced: Traced) -> dict[Any, Node]:
    """For each node the first one that computes the same."""
    found: dict[Any, Node] = {}
    first: dict[Any, Node] = {}
    for node in traced.outputs[0].graph.nodes:
        key = node.op, node.target, str(map_arg((node.args, node.kwargs), found.__getitem__))
        found[node] = first.setdefault(key, node)
    return found


def _loops(traced: Traced, same: Mapping[Any, Node]) -> Iterable[list[Node]]:
    """The states of each chain of steps with the same weights, one after another."""

    def form(state: Node) -> tuple[Any, ...]:
        products, others = _terms(state)
        return (base_name(state), len(others), *((same[each], start) for _, each, start, _ in products))

    found: dict[Node, list[Node]] = {}
    for node in traced.outputs[0].graph.nodes:
        if node.op == "call_function" and base_name(node) in _KINDS and node.meta["val"].dim() == 2:
            before = [each for each, *_ in _terms(node)[0] if each in found and form(each) == form(node)]
            found[node] = [*(found.pop(before[0]) if before else ()), node]
    return (each for each in found.values() if len(each) >= FEWEST)


def _is_layer(loop: Sequence[Node], traced: Traced) -> bool:
    """Whether a step depends on the one before by one product alone, and blocks can hold the weights."""
    rows, units = (traced.estimate(traced.expression(each)) for each in loop[0].meta["val"].shape)
    own = _own(loop)
    for before, state in pairwise(loop):
        products, others = _terms(state)
        given = [*(each for number, (each, *_) in enumerate(products) if number != own), *others]
        if products[own][0] is not before or not set(loop).isdisjoint(behind(filter(is_tensor, given))):
            return False
    return rows <= MOST_STATES and units**2 <= MOST_BLOCKS * THREADS * REGISTERS


def _own(loop: Sequence[Node]) -> int:
    """Which product of a step is that of the step before."""
    return next(number for number, (each, *_) in enumerate(_terms(loop[1])[0]) if each is loop[0])


def _terms(state: Node) -> tuple[list[_Term], list[Any]]:
    """The products that a state is computed of, with those of joined operands apart, and what is added to them."""
    products: list[_Term] = []
    others: list[Any] = []
    waiting: list[Any] = list(state.args)
    while waiting:
        each = waiting.pop()
        name = base_name(each) if isinstance(each, Node) and each.op == "call_function" else ""
        if name == "add" and not each.kwargs:
            waiting += each.args
        elif name == "mm":
            left, right = each.args
            joined = left.op == "call_function" and base_name(left) == "cat" and _dim(left) == 1
            start = 0
            for part in left.args[0] if joined else [left]:
                products.append((part, right, start, part.meta["val"].shape[1]))
                start += products[-1][-1]
        else:
            others.append(each)
    return products, others


def _dim(cat: Node) -> int:
    return axis(cat, cat.args[1] if len(cat.args) > 1 else 0)


class _Layered:
    """The function of a graph, in which a node is computed when another one needs it."""

    def __init__(self, traced: Traced, loops: Sequence[list[Node]], same: Mapping[Any, Node]) -> None:
        self._traced, self._same = traced, same
        self._loop_of = {state: loop for loop in loops for state in loop}
        self._values: dict[Any, Any] = {}

    def run(self, *given: Tensor) -> tuple[Tensor, ...]:
        self._values = dict(zip(self._traced.inputs, given, strict=True)) | dict(self._traced.constants)
        return tuple(map(self._value, self._traced.outputs))

    def _value(self, node: Any) -> Any:
        if isinstance(node, list | tuple):
            return [self._value(each) for each in node]
        if not isinstance(node, Node):
            return node
        node = self._same[node]
        if node in self._values:
            return self._values[node]
        if loop := self._loop_of.get(node):
            states = self._states(loop)
            self._values |= dict(zip(loop, states.unbind(), strict=True)) | {(loop[0], "and later"): states}
            return self._values[node]
        parts: Any = node.args[0] if base_name(node) == "cat" else ()
        whole = self._at_once(parts) if len(parts) >= FEWEST else None
        if whole is None:
            named = {name: self._value(each) for name, each in node.kwargs.items()}
            self._values[node] = node.target(*self._value(node.args), **named)
        else:
            self._values[node] = whole.movedim(0, _dim(node)).flatten(_dim(node), _dim(node) + 1)
        return self._values[node]

    def _states(self, loop: Sequence[Node]) -> Tensor:
        """The states after each step."""
        steps = [_terms(state) for state in loop]
        own = _own(loop)
        before, matrix, start, size = steps[0][0][own]
        weight, first = self._value(matrix).narrow(0, start, size).t(), self._value(before).unsqueeze(0)
        gates: Any = weight.new_zeros(len(loop), *first.shape[1:-1], weight.shape[0])
        for number, (_, matrix, start, size) in enumerate(steps[0][0]):
            if number != own:
                operand = self._stacked([products[number][0] for products, _ in steps])
                gates = gates + product_of_rows(operand, self._value(matrix).narrow(0, start, size))
        for number in range(len(steps[0][1])):
            gates = gates + self._stacked([others[number] for _, others in steps])
        kind, zeros = _KINDS[base_name(loop[0])], weight.new_zeros(weight.shape[0])
        return recurrent(gates, weight, zeros, first, first, kind, 0, 1)[0]  # type: ignore[no-any-return]

    def _stacked(self, nodes: Sequence[Any]) -> Any:
        """Tensors along a new first axis; what is the same for all steps alone."""
        if len({self._same.get(each, each) for each in nodes}) == 1:
            return self._value(nodes[0])
        whole = self._at_once(nodes)
        return torch.stack(self._value(nodes)) if whole is None else whole

    def _at_once(self, nodes: Sequence[Any]) -> Any:
        """What nodes compute alike of all steps, along a new first axis; None where they don't."""
        nodes = [self._same.get(each, each) for each in nodes]
        first = nodes[0]
        if nodes == self._loop_of.get(first):
            self._value(first)
            return self._values[first, "and later"]
        alike = all(isinstance(each, Node) and each.op == "call_function" for each in nodes)
        if not alike or any(each.target is not first.target or each.kwargs for each in nodes):
            return None
        columns = list(zip(*(each.args for each in nodes), strict=True))
        name = base_name(first)
        same = [len({self._same.get(each, each) for each in column}) == 1 for column in columns]
        if name == "select" and same[:2] == [True, True]:
            source, dim, _ = first.args
            count = source.meta["val"].shape[axis(source, dim)]
            in_order = columns[2] == tuple(range(len(nodes)))
            return self._value(source).movedim(dim, 0) if in_order and count == len(nodes) else None
        if name == "unsqueeze" and same[1:] == [True]:
            return self._stacked(columns[0]).unsqueeze(axis(first, first.args[1]) + 1)
        if name == "mm" and same == [False, True]:
            return product_of_rows(self._stacked(columns[0]), self._value(first.args[1]))
        if torch.Tag.pointwise in first.target.tags:
            rank, operands = first.meta["val"].dim(), [self._stacked(column) for column in columns]
            for number, is_same in enumerate(same):
                if not is_same:  # axes that it is broadcast along come after the first one
                    while operands[number].dim() <= rank:
                        operands[number] = operands[number].unsqueeze(1)
            return first.target(*operands)
        return None
