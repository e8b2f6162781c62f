"""Code that looks like a template: statements of CUDA C++ in which `$name` stands for whatever expression is there.

The syntax trees are compared, so that layout, comments, `#pragma unroll`, needless parentheses and the braces around
a single statement make no difference. A name that comes again stands for the same text again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tree_sitter import Node

from mctskernel.edits.indexing import code
from mctskernel.edits.syntax import parse, squeezed, strip_parentheses, text_of, walk

_IGNORED = frozenset({"comment", ";", "preproc_call"})
_ANY = "$"


def match(template: str, statements: Sequence[Node]) -> Mapping[str, Node] | None:
    """What each `$name` (without the sign) of a template stands for in some statements; None if they don't look so."""
    wanted = [node for node in _statements(template) if node.type not in _IGNORED]
    found = [node for node in statements if node.type not in _IGNORED]
    bound: dict[str, Node] = {}
    return bound if _all_match(wanted, found, bound) else None


def expression(text: str) -> Node:
    """The tree of an expression. Raises ValueError for a text that isn't one."""
    root = parse(f"void f() {{ auto value = {text}; }}").root
    declarator = next(walk(root, "init_declarator"), None)
    value = declarator.child_by_field_name("value") if declarator is not None else None
    if value is None or root.has_error:
        raise ValueError(f"This is no expression: {text}")
    return value


def same_text(first: Node, second: Node) -> bool:
    """Whether two nodes are the same text but for blanks and outer parentheses."""
    return squeezed(strip_parentheses(first)) == squeezed(strip_parentheses(second))


@lru_cache(maxsize=64)
def _statements(template: str) -> tuple[Node, ...]:
    root = parse(f"void f() {{\n{template}\n}}").root
    if root.has_error:
        raise ValueError(f"This template can't be parsed: {template}")
    return tuple(code(next(walk(root, "compound_statement"))))


def _all_match(wanted: Sequence[Node], found: Sequence[Node], bound: dict[str, Node]) -> bool:
    return len(wanted) == len(found) and all(
        _matches(one, other, bound) for one, other in zip(wanted, found, strict=True)
    )


def _matches(wanted: Node, found: Node, bound: dict[str, Node]) -> bool:
    wanted, found = _bare(wanted), _bare(found)
    if wanted.child_count == 0 and text_of(wanted).startswith(_ANY):
        name = text_of(wanted).removeprefix(_ANY)
        before = bound.setdefault(name, found)
        return same_text(before, found)
    if wanted.type != found.type:
        return False
    if wanted.child_count == 0 or found.child_count == 0:
        return wanted.child_count == found.child_count and text_of(wanted) == text_of(found)
    return _all_match(_parts(wanted), _parts(found), bound)


def _bare(node: Node) -> Node:
    """A node without parentheses; a block of one statement as that statement."""
    node = strip_parentheses(node)
    if node.type == "compound_statement":
        inner = _parts(node)[1:-1]
        if len(inner) == 1 and inner[0].type != "declaration":
            return _bare(inner[0])
    return node


def _parts(node: Node) -> list[Node]:
    return [child for child in node.children if child.type not in _IGNORED]
