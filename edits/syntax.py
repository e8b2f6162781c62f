"""CUDA C++ source as a syntax tree: functions, loops, declarations, accesses, and edits by byte spans.

A thin layer over tree-sitter. Every span is in bytes of the UTF-8 text, as tree-sitter counts them. Nothing
here runs the preprocessor: a macro's name is an identifier like any other, `macro_names` says which names are
macros, and a function with conditional compilation inside it counts as not `clean`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tree_sitter import Node, Parser

from mctskernel.edits.nodes import (
    LANGUAGE,
    Declaration,
    Loop,
    Parameter,
    Replacement,
    as_loop,
    assigned_names,
    assignment,
    calls,
    declared,
    enclosing,
    field,
    has,
    identifiers,
    insert_after,
    insert_before,
    operands,
    parameter_of,
    squeezed,
    strip_parentheses,
    swap,
    text_of,
    unroll_pragma,
    uses,
    walk,
    whole_number,
    within,
)

__all__ = [
    "Access",
    "Declaration",
    "Function",
    "Loop",
    "Macro",
    "Parameter",
    "Replacement",
    "Source",
    "accesses",
    "as_loop",
    "assigned_names",
    "assignment",
    "calls",
    "define",
    "enclosing",
    "fresh_name",
    "has",
    "identifiers",
    "indentation",
    "insert_after",
    "insert_before",
    "names_in_scope",
    "operands",
    "parse",
    "replace",
    "squeezed",
    "strip_parentheses",
    "swap",
    "text_of",
    "unroll_pragma",
    "uses",
    "walk",
    "whole_number",
    "within",
]

_CONDITIONALS = frozenset({"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"})


@dataclass(frozen=True)
class Source:
    """A text and its syntax tree."""

    text: str
    root: Node

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Function definitions, templates and those in `extern "C"` blocks included, in order."""
        return tuple(_function(node) for node in walk(self.root, "function_definition"))

    @cached_property
    def kernels(self) -> tuple[Function, ...]:
        """The `__global__` functions."""
        return tuple(function for function in self.functions if function.is_kernel)

    @cached_property
    def macro_names(self) -> frozenset[str]:
        """Names of all macros, object-like and function-like."""
        return frozenset(text_of(field(node, "name")) for node in _defines(self.root))

    @cached_property
    def integer_macros(self) -> tuple[Macro, ...]:
        """Object-like macros defined once, outside any condition, as a whole-number literal."""
        names = [text_of(field(node, "name")) for node in _defines(self.root)]
        found = (_integer_macro(node) for node in walk(self.root, "preproc_def"))
        return tuple(macro for macro in found if macro is not None and names.count(macro.name) == 1)

    @cached_property
    def macro_words(self) -> frozenset[str]:
        """Identifiers that occur in macro bodies: code that the tree doesn't show may use them."""
        words: set[str] = set()
        for node in _defines(self.root):
            value = node.child_by_field_name("value")
            if value is not None:
                words |= identifiers(parse(text_of(value)).root)
        return frozenset(words)

    def kernel(self, name: str) -> Function | None:
        """The `__global__` function of that name, if it parses cleanly."""
        return next((kernel for kernel in self.kernels if kernel.name == name and kernel.clean), None)


@dataclass(frozen=True)
class Macro:
    """`#define name value` with a whole-number literal; `start` and `end` are the literal's bytes."""

    name: str
    value: int
    start: int
    end: int
    node: Node


@dataclass(frozen=True)
class Function:
    """A function definition. `body` is its compound statement, braces included."""

    name: str
    parameters: tuple[Parameter, ...]
    is_kernel: bool
    is_template: bool
    launch_bounds: Node | None
    body: Node
    node: Node

    @cached_property
    def clean(self) -> bool:
        """Whether it parsed without errors and holds no conditional compilation."""
        if self.node.has_error or enclosing(self.node, *_CONDITIONALS) is not None:
            return False
        return not has(self.node, *_CONDITIONALS)

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """Every variable declared in the body, loop variables included, in order."""
        found: list[Declaration] = []
        for node in walk(self.body, "declaration"):
            found += declared(node)
        return tuple(found)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The canonical loops of the body, outer before inner."""
        return tuple(loop for node in walk(self.body, "for_statement") if (loop := as_loop(node)) is not None)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Array accesses `a[i]`, `a[i][j]` whose array is a plain name, in order."""
        return accesses(self.body)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


@dataclass(frozen=True)
class Access:
    """`array[index]...`: all its indices, and whether it is read and written (`+=` is both).

    One whose address is taken (`&a[i]`, as atomics do) counts as both.
    """

    array: str
    indices: tuple[Node, ...]
    reads: bool
    writes: bool
    node: Node


@lru_cache(maxsize=256)
def parse(text: str) -> Source:
    """Parse a CUDA C++ text; never fails: look at `Function.clean` before trusting a function."""
    return Source(text, Parser(LANGUAGE).parse(text.encode()).root_node)


def replace(source: Source, replacements: Iterable[Replacement]) -> str:
    """The text with all replacements made at once. They must not overlap (ValueError)."""
    data = source.text.encode()
    pieces: list[bytes] = []
    position = 0
    for item in sorted(replacements, key=lambda item: (item.start, item.end)):
        if item.start < position or item.end < item.start or item.end > len(data):
            raise ValueError(f"The replacement of bytes {item.start} to {item.end} overlaps another.")
        pieces += [data[position : item.start], item.text.encode()]
        position = item.end
    return b"".join([*pieces, data[position:]]).decode()


def define(source: Source, name: str, value: int) -> Replacement:
    """A new `#define`, after the last one at the top of the file or before the first code."""
    text = f"#define {name} {value}\n"
    defines = [node for node in source.root.children if node.type == "preproc_def"]
    if defines:
        return insert_after(defines[-1], text)
    first = next(node for node in source.root.children if node.type != "comment")
    return insert_before(first, text + "\n")


def indentation(source: Source, node: Node) -> str:
    """The blanks at the start of the line on which a node starts."""
    line = source.text.encode()[: node.start_byte].rpartition(b"\n")[2].decode()
    return line[: len(line) - len(line.lstrip())]


def names_in_scope(source: Source, function: Function) -> frozenset[str]:
    """Every name that a new variable in the function must not take."""
    return identifiers(function.node) | source.macro_names | source.macro_words


def fresh_name(source: Source, wanted: str) -> str:
    """`wanted`, or with a number after it, so that it is no name of the file."""
    taken = identifiers(source.root) | source.macro_names | source.macro_words
    number = 2
    name = wanted
    while name in taken:
        name, number = f"{wanted}{number}", number + 1
    return name


@lru_cache(maxsize=4096)
def accesses(node: Node) -> tuple[Access, ...]:
    """Array accesses in a subtree whose array is a plain name, in order."""
    found = []
    for subscript in walk(node, "subscript_expression"):
        parent = subscript.parent
        if parent is not None and parent.type == "subscript_expression" and _argument(parent) == subscript:
            continue
        indices: list[Node] = []
        base = subscript
        while base.type == "subscript_expression":
            arguments = field(base, "indices").named_children
            if len(arguments) != 1:
                break
            indices.insert(0, arguments[0])
            base = _argument(base)
        if base.type == "identifier":
            reads, writes = _use(subscript)
            found.append(Access(text_of(base), tuple(indices), reads, writes, subscript))
    return tuple(found)


def _use(node: Node) -> tuple[bool, bool]:
    parent = node.parent
    while parent is not None and parent.type in {"parenthesized_expression", "field_expression"}:
        node, parent = parent, parent.parent
    if parent is None:
        return True, False
    if parent.type == "assignment_expression" and parent.child_by_field_name("left") == node:
        return text_of(field(parent, "operator")) != "=", True
    if parent.type == "update_expression":
        return True, True
    if parent.type == "pointer_expression" and text_of(field(parent, "operator")) == "&":
        return True, True
    return True, False


def _argument(subscript: Node) -> Node:
    return strip_parentheses(field(subscript, "argument"))


def _defines(root: Node) -> Iterator[Node]:
    return walk(root, "preproc_def", "preproc_function_def")


def _integer_macro(node: Node) -> Macro | None:
    value = node.child_by_field_name("value")
    if value is None or enclosing(node, *_CONDITIONALS) is not None:
        return None
    literal = text_of(value).partition("//")[0].strip()
    number = whole_number(literal)
    if number is None:
        return None
    start = value.start_byte
    return Macro(text_of(field(node, "name")), number, start, start + len(literal.encode()), node)


def _function(node: Node) -> Function:
    head = [child for child in node.children if child.type not in {"compound_statement"}]
    declarator = next(walk(field(node, "declarator"), "function_declarator"), node)
    parameter_list = declarator.child_by_field_name("parameters")
    return Function(
        name=text_of(field(declarator, "declarator")),
        parameters=tuple(
            parameter_of(child)
            for child in (parameter_list.named_children if parameter_list is not None else ())
            if child.type == "parameter_declaration"
        ),
        is_kernel=any(child.type == "__global__" for child in head),
        is_template=node.parent is not None and node.parent.type == "template_declaration",
        launch_bounds=next((child for child in head if child.type == "launch_bounds"), None),
        body=field(node, "body"),
        node=node,
    )
