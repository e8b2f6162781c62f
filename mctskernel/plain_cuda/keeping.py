"""Which nodes of a graph lie in memory, each written by a kernel; the others are computed where they are read."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

from torch.fx import Node

from mctskernel.plain_cuda.rules import Kind, Rule, is_tensor, rule_of

HEAVIEST = 24
"""Operators that are computed again wherever their result is read, rather than kept in memory."""

_FLAT = {"aten.view.default", "aten._unsafe_view.default", "aten.clone.default", "aten.alias.default"}
_FLAT |= {"aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"}


def ordered(outputs: Sequence[Node]) -> list[Node]:
    """All nodes of tensors that outputs depend on, each after those that it depends on."""
    needed: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += tensors(node)
    return [node for node in outputs[0].graph.nodes if node in needed]


def tensors(node: Node) -> list[Node]:
    """The tensors that a node reads; of a part of a result, those that the whole is made of."""
    if node.target is operator.getitem:
        return tensors(node.args[0])  # type: ignore[arg-type]
    return [each for each in node.all_input_nodes if is_tensor(each)]


def kept_nodes(order: Sequence[Node], outputs: Collection[Node]) -> list[Node]:
    """The nodes that get a kernel, in the order in which they are computed. Raises PlainCudaError.

    They are those that take more than a few operators for each element, those whose elements are read over and over
    again, and the outputs.
    """
    rules = {node: rule_of(node) for node in order if node.op == "call_function"}
    kept = {node for node, each in rules.items() if each.kind in {Kind.STORED, Kind.WHOLE_ROW}}
    weights: dict[Node, int] = dict.fromkeys(order, 0)
    for node, rule in rules.items():
        own = 1 if rule.kind is Kind.ELEMENT and "_to_copy" not in str(node.target) else 0
        weights[node] = own + sum(weights[each] for each in tensors(node) if each not in kept)
        if weights[node] > HEAVIEST:
            kept.add(node)
        if rule.repeats:
            repeated = [_worth_keeping(source, rules, weights, kept) for source in tensors(node)]
            kept |= {each for each in repeated if each is not None}
    kept |= {node for node in outputs if node in rules and rules[node].kind is not Kind.VIEW}
    return [node for node in order if node in kept]


def written_flat(node: Node, kept: Collection[Node]) -> Node | None:
    """The kept node whose elements are an output's in the same order; None where there is none."""
    while node not in kept:
        if node.op != "call_function" or str(node.target) not in _FLAT:
            return None
        (node,) = tensors(node)
    return node


def _worth_keeping(
    node: Node, rules: Mapping[Node, Rule], weights: Mapping[Node, int], kept: Collection[Node]
) -> Node | None:
    """The node behind views that is worth keeping, where its elements are read over and over again."""
    while node in rules and node not in kept:
        if rules[node].kind is not Kind.VIEW:
            return node if weights[node] > 0 else None
        sources = tensors(node)
        if not sources:
            return None
        node = sources[0]
    return None
