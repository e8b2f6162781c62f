"""Python text that becomes a part of another file: which names it takes, and how it gives some up."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping


def global_names(text: str) -> tuple[str, ...]:
    """The names that a module's text gives a meaning to at its top level."""
    found: dict[str, None] = {}
    for statement in ast.parse(text).body:
        for node in _of_this_scope(statement):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[name] = None
                case ast.Name(id=name, ctx=ast.Store()):
                    found[name] = None
                case ast.alias(name=name, asname=asname):
                    found[asname or name.partition(".")[0]] = None
    return tuple(found)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with other names for some, wherever they stand for a value or a parameter; comments are lost."""
    return ast.unparse(_Renaming(names).visit(ast.parse(text)))


def without_docstrings(text: str, unwanted: Callable[[str], bool]) -> str:
    """The text with `...` in place of the docstrings that aren't wanted; everything else stays as it is."""
    lines = text.split("\n")
    for node in sorted(_docstrings(ast.parse(text)), key=lambda each: -each.lineno):
        if unwanted(ast.get_source_segment(text, node) or ""):
            indentation = lines[node.lineno - 1][: node.col_offset]
            assert node.end_lineno is not None  # noqa: S101 - what was parsed has it
            rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
            lines[node.lineno - 1 : node.end_lineno] = [f"{indentation}...{rest}"]
    return "\n".join(lines)


def _of_this_scope(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from _of_this_scope(child)


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        self.generic_visit(node)
        return node
