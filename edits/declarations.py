"""Declarations of CUDA C++: parameters of functions, and variables with their types, sizes and values."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.edits.nodes import field, text_of, walk

_DECLARATORS = frozenset(
    {"pointer_declarator", "array_declarator", "init_declarator", "reference_declarator"}
)
_UNKNOWN = "?"


@dataclass(frozen=True)
class Parameter:
    """A function parameter. `type` is without qualifiers; `const` is the pointee's for a pointer."""

    name: str
    type: str
    pointer: bool
    const: bool
    restrict: bool
    node: Node


@dataclass(frozen=True)
class Declaration:
    """One declared variable; `extents` are an array's sizes, None for `[]`; `node` is the statement."""

    name: str
    type: str
    pointer: bool
    const: bool
    shared: bool
    extern: bool
    extents: tuple[Node | None, ...]
    value: Node | None
    declarator: Node
    node: Node


def parameter_of(node: Node) -> Parameter:
    """What a `parameter_declaration` declares."""
    pointers = list(walk(node, "pointer_declarator", "array_declarator", "reference_declarator"))
    return Parameter(
        name=_declared_name(node),
        type=text_of(field(node, "type")),
        pointer=bool(pointers),
        const=_has_qualifier(node, "const"),
        restrict=any(_has_qualifier(pointer, "__restrict__", "__restrict") for pointer in pointers),
        node=node,
    )


def declared(node: Node) -> tuple[Declaration, ...]:
    """The variables of a `declaration`, in order."""
    return tuple(_declaration(node, child) for child in node.children_by_field_name("declarator"))


def _declaration(node: Node, declarator: Node) -> Declaration:
    value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
    inner = field(declarator, "declarator") if declarator.type == "init_declarator" else declarator
    extents: list[Node | None] = []
    pointer = False
    while inner.type in _DECLARATORS:
        if inner.type == "array_declarator":
            extents.insert(0, inner.child_by_field_name("size"))
        pointer = pointer or inner.type != "array_declarator"
        below = inner.child_by_field_name("declarator")
        if below is None:
            below = inner.named_children[-1] if inner.named_children else None
        if below is None:
            break
        inner = below
    return Declaration(
        name=text_of(inner),
        type=text_of(field(node, "type")),
        pointer=pointer,
        const=_has_qualifier(node, "const", "constexpr"),
        shared=_has_qualifier(node, "__shared__"),
        extern=any(text_of(child) == "extern" for child in node.children),
        extents=tuple(extents),
        value=value,
        declarator=declarator,
        node=node,
    )


def _declared_name(node: Node) -> str:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type in _DECLARATORS:
        below = declarator.child_by_field_name("declarator")
        declarator = below if below is not None else next(iter(reversed(declarator.named_children)), None)
    return text_of(declarator) if declarator is not None else _UNKNOWN


def _has_qualifier(node: Node, *texts: str) -> bool:
    return any(text_of(child) in texts for child in node.children if child.type == "type_qualifier")
