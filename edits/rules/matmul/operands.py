"""The factors of a matmul's products: what each reads, along which axis, and through which conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.edits.affine import polynomial
from mctskernel.edits.indexing import inlined, replace_names
from mctskernel.edits.syntax import (
    Function,
    accesses,
    calls,
    identifiers,
    parse,
    strip_parentheses,
    text_of,
    walk,
    whole_number,
)

INTEGERS = frozenset(
    {"int", "unsigned", "unsigned int", "char", "unsigned char", "signed char", "short", "size_t"}
)
CONVERSIONS = frozenset({"__bfloat162float", "__half2float", "float", "static_cast<float>"})
"""Functions that turn an element into the float of the same value."""


@dataclass(frozen=True)
class Axis:
    """One index of the output: its variable, its bound in the kernel's words and in the launch plan's."""

    name: str
    bound: str
    extent: str


@dataclass(frozen=True)
class Operand:
    """A factor of the products: `text` computes it in terms of its axis's variable and the summation index.

    `along_k` says whether consecutive summation indices are consecutive elements; `element` is the text of the
    one element of `buffer` behind the factor if that is all there is to it but for a conversion, and `type` its type.
    """

    buffer: str
    text: str
    axis: Axis
    along_k: bool
    type: str = ""
    element: str | None = None

    def at(self, axis_index: str, k_name: str, k_index: str) -> str:
        """The operand's text at other indices."""
        return replace_names(self.text, {self.axis.name: axis_index, k_name: k_index})

    def element_at(self, axis_index: str, k_name: str, k_index: str) -> str:
        """The text of the operand's element, not converted, at other indices."""
        return replace_names(self.element or self.text, {self.axis.name: axis_index, k_name: k_index})


def read_operand(
    node: Node,
    axes: tuple[Axis, Axis],
    k: str,
    known: Mapping[str, Node],
    *,
    parameters: frozenset[str],
    function: Function,
) -> Operand | None:
    """A factor in terms of one of the axes and the summation index; None if it isn't a pure function of the two."""
    read = accesses(node)
    if not read or not _is_pure(node) or not _keeps_types(node, known, function):
        return None
    names = frozenset(axis.name for axis in axes)
    used: set[Axis] = set()
    along_k = True
    for access in read:
        pointer = function.parameter(access.array)
        if pointer is None or not pointer.pointer or len(access.indices) != 1:
            return None
        value = polynomial(access.indices[0], {n: v for n, v in known.items() if n not in names})
        own = [axis for axis in axes if axis.name in value.names]
        if len(own) != 1 or any(is_geometry(name) for name in value.names):
            return None
        used.add(own[0])
        step, across = value.coefficient(k), value.coefficient(own[0].name)
        if k in value.names and access == read[0]:
            neighbours = across is not None and across.constant == 1
            along_k = step is not None and step.constant == 1 if not neighbours else False
    text = inlined(node, known, names | {k} | parameters | CONVERSIONS)
    mentioned = identifiers(parse(text).root) if text is not None else frozenset()
    if text is None or len(used) != 1 or k not in mentioned or names & mentioned != {a.name for a in used}:
        return None
    first = function.parameter(read[0].array)
    element = (
        inlined(read[0].node, known, names | {k} | parameters) if _is_converted(node, read[0].node) else None
    )
    kind = first.type if first is not None else ""
    return Operand(read[0].array, text, used.pop(), along_k, kind, element)


def _is_pure(node: Node) -> bool:
    """Whether an expression changes nothing and calls nothing but conversions."""
    changes = any(
        True for _ in walk(node, "assignment_expression", "update_expression", "pointer_expression")
    )
    return not changes and len(calls(node)) == len(calls(node, *CONVERSIONS))


def _keeps_types(node: Node, known: Mapping[str, Node], function: Function) -> bool:
    """Whether what a node's names are declared as can replace them: no float is cut to a whole number on the way."""
    types = {d.name: d.type for d in function.declarations}
    for name in identifiers(node) & known.keys():
        value = known[name]
        whole = types[name] in INTEGERS
        fractions = [text_of(n) for n in walk(value, "number_literal") if whole_number(text_of(n)) is None]
        read = {p.type for access in accesses(value) if (p := function.parameter(access.array)) is not None}
        floats = {types[n] for n in identifiers(value) if n in types} - INTEGERS
        if whole and (fractions or floats or calls(value) or not read <= INTEGERS):
            return False
        if types[name] not in INTEGERS | {"float"} or not _keeps_types(value, known, function):
            return False
    return True


def _is_converted(node: Node, element: Node) -> bool:
    """Whether an expression is an element, as it is or converted to float."""
    node = strip_parentheses(node)
    if node == element:
        return True
    inner = node.child_by_field_name("value" if node.type == "cast_expression" else "arguments")
    if inner is None or node.type not in {"cast_expression", "call_expression"}:
        return False
    converts = node.type == "cast_expression" or text_of(node.children[0]) in CONVERSIONS
    values = inner.named_children if inner.type == "argument_list" else [inner]
    return converts and len(values) == 1 and strip_parentheses(values[0]) == element


def is_geometry(name: str) -> bool:
    """Whether a name's value depends on how blocks and threads are laid out; a batch along z may stay."""
    return name.startswith(("threadIdx", "blockDim", "gridDim")) or name in {"blockIdx.x", "blockIdx.y"}
