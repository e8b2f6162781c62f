"""Nodes of a tree-sitter syntax tree: text, order, names, and replacements of their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Query, QueryCursor

LANGUAGE = Language(tree_sitter_cuda.language())


@dataclass(frozen=True)
class Replacement:
    """New text for the bytes from `start` up to `end`; an insertion when they are equal."""

    start: int
    end: int
    text: str


def text_of(node: Node) -> str:
    """A node's text."""
    return (node.text or b"").decode()


def squeezed(node: Node) -> str:
    """A node's text without blanks."""
    return "".join(text_of(node).split())


def walk(node: Node, *types: str) -> Iterator[Node]:
    """The node and all below it, in the order of the text; only of the given types if there are any."""
    query = _of_types(types)
    if query is not None:
        found = QueryCursor(query).captures(node).get("found", [])
        yield from sorted(found, key=lambda inner: (inner.start_byte, -inner.end_byte))
        return
    stack = [node]
    while stack:
        current = stack.pop()
        if not types or current.type in types:
            yield current
        stack.extend(reversed(current.children))


def within(node: Node, outer: Node) -> bool:
    """Whether a node lies inside another, or is it."""
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def enclosing(node: Node, *types: str) -> Node | None:
    """The nearest node of one of the types that has this one inside."""
    parent = node.parent
    while parent is not None and parent.type not in types:
        parent = parent.parent
    return parent


@lru_cache(maxsize=4096)
def identifiers(node: Node) -> frozenset[str]:
    """Plain names in a subtree; `threadIdx.x` and its kin count as one name."""
    names: set[str] = set()
    for found in walk(node, "identifier", "type_identifier", "field_expression"):
        if found.type == "field_expression":
            names.add(squeezed(found))
        else:
            names.add(text_of(found))
    return frozenset(names)


def calls(node: Node, *names: str) -> tuple[Node, ...]:
    """Call expressions in a subtree, of the named functions if there are any."""
    return tuple(
        call
        for call in walk(node, "call_expression")
        if not names or text_of(field(call, "function")) in names
    )


def assigned_names(node: Node) -> dict[str, int]:
    """How often each plain name is assigned, incremented or has its address taken; not initialised."""
    counts: dict[str, int] = {}
    for found in walk(node, "assignment_expression", "update_expression", "pointer_expression"):
        if found.type == "pointer_expression" and text_of(field(found, "operator")) != "&":
            continue
        target = strip_parentheses(
            field(found, "left" if found.type == "assignment_expression" else "argument")
        )
        if target.type == "field_expression":
            target = field(target, "argument")
        if target.type == "identifier":
            counts[text_of(target)] = counts.get(text_of(target), 0) + 1
    return counts


def strip_parentheses(node: Node) -> Node:
    """The expression inside any parentheses."""
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def whole_number(literal: str) -> int | None:
    """The value of an integer literal without digit separators."""
    digits = literal.rstrip("uUlL")
    try:
        return int(digits, 0)
    except ValueError:
        return None


def swap(node: Node, text: str) -> Replacement:
    """Replace a node's text."""
    return Replacement(node.start_byte, node.end_byte, text)


def insert_before(node: Node, text: str) -> Replacement:
    """Insert text right before a node."""
    return Replacement(node.start_byte, node.start_byte, text)


def insert_after(node: Node, text: str) -> Replacement:
    """Insert text right after a node."""
    return Replacement(node.end_byte, node.end_byte, text)


def field(node: Node, name: str) -> Node:
    """A node's child by its field's name; the node itself where there is none."""
    return node.child_by_field_name(name) or node


@cache
def _of_types(types: tuple[str, ...]) -> Query | None:
    """A query for nodes of some types, which is several times faster than looking at every node from Python."""
    named = True
    if not types or any(LANGUAGE.id_for_node_kind(name, named) is None for name in types):
        return None
    return Query(LANGUAGE, f"[{' '.join(f'({name})' for name in types)}] @found")
