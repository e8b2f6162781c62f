"""CUDA C++ source as a syntax tree: functions, loops, declarations, accesses, and edits by byte spans.

A thin layer over tree-sitter. Every span is in bytes of the UTF-8 text, as tree-sitter counts them. Nothing
here runs the preprocessor: a macro's name is an identifier like any other, `macro_names` says which names are
macros, and a function with conditional compilation inside it counts as not `clean`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from mctskernel.core.kernel import leading_comment

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
        return tuple(function for function in self.functions if function.is_kernel)

    @cached_property
    def assertions(self) -> tuple[Node, ...]:
        """Every `static_assert`."""
        return tuple(walk(self.root, "static_assert_declaration"))

    @cached_property
    def macro_names(self) -> frozenset[str]:
        """Names of all macros, object-like and function-like."""
        return frozenset(text_of(field(node, "name")) for node in _defines(self.root))

    @cached_property
    def integer_macros(self) -> tuple[Constant, ...]:
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
class Constant:
    """A whole number that a source names, as `#define name value` does; `start` and `end` are those of the number.

    They count bytes in CUDA C++, and characters in Triton, where `name = value` is one.
    """

    name: str
    value: int
    start: int
    end: int


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
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


@dataclass(frozen=True)
class Access:
    """`array[index]...`: all indices, and whether it is read and written (both: `+=`, and `&a[i]` for atomics)."""

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


def define(source: Source, values: Mapping[str, int | str]) -> Replacement:
    """A `#define` for each value, after those above the first function or, without any, after the leading comment."""
    text = "".join(f"#define {name} {value}\n" for name, value in values.items())
    code = source.functions[0].node.start_byte if source.functions else 0
    existing = [n for n in source.root.children if n.type == "preproc_def" and n.end_byte <= code]
    if existing:
        return insert_after(existing[-1], text)
    lead = leading_comment(source.text)
    position = len(source.text[: lead[1] + 2].encode()) if lead is not None else 0
    return Replacement(position, position, f"\n{text}".rstrip("\n"))


def indentation(source: Source, node: Node) -> str:
    """The blanks at the start of the line on which a node starts."""
    line = source.text.encode()[: node.start_byte].rpartition(b"\n")[2].decode()
    return line[: len(line) - len(line.lstrip())]


def names_in_scope(source: Source, function: Function) -> frozenset[str]:
    """Every name that a new variable in the function must not take."""
    return identifiers(function.node) | source.macro_names | source.macro_words


def fresh_name(source: Source, wanted: str) -> str:
    """`wanted`, or with a number after it, so that it is no name of the file."""
    (name,) = fresh_names(identifiers(source.root) | source.macro_names | source.macro_words, wanted)
    return name


def fresh_names(taken: Iterable[str], *wanted: str) -> tuple[str, ...]:
    """The wanted names, each with a number after it if it is taken."""
    used = set(taken)
    found = []
    for name in wanted:
        candidate, number = name, 2
        while candidate in used:
            candidate, number = f"{name}{number}", number + 1
        used.add(candidate)
        found.append(candidate)
    return tuple(found)


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


def _integer_macro(node: Node) -> Constant | None:
    value = node.child_by_field_name("value")
    if value is None or enclosing(node, *_CONDITIONALS) is not None:
        return None
    literal = text_of(value).partition("//")[0].strip()
    number = whole_number(literal)
    if number is None:
        return None
    start = value.start_byte
    return Constant(text_of(field(node, "name")), number, start, start + len(literal.encode()))


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


LANGUAGE = Language(tree_sitter_cuda.language())


@dataclass(frozen=True)
class Replacement:
    """New text for the bytes (in Triton, characters) from `start` up to `end`; an insertion when they are equal."""

    start: int
    end: int
    text: str


def text_of(node: Node) -> str:
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


def has(node: Node, *types: str) -> bool:
    return next(walk(node, *types), None) is not None


def uses(node: Node, name: str) -> int:
    """How often a name occurs in a subtree; it may be `threadIdx.x` or its kin."""
    kind = "field_expression" if "." in name else "identifier"
    return sum(squeezed(found) == name for found in walk(node, kind))


def used_within(node: Node, name: str, inside: Iterable[Node]) -> bool:
    """Whether each use of a plain name in a subtree lies in one of some nodes."""
    uses = [found for found in walk(node, "identifier") if text_of(found) == name]
    places = tuple(inside)
    return all(any(within(use, place) for place in places) for use in uses)


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


def operands(node: Node) -> tuple[Node, str, Node] | None:
    """The left side, the operator and the right side of a binary expression or an assignment; None for others."""
    if node.type not in {"binary_expression", "assignment_expression"}:
        return None
    return field(node, "left"), text_of(field(node, "operator")), field(node, "right")


def assignment(statement: Node) -> tuple[Node, str, Node] | None:
    """The operands of a statement that is one assignment; None for any other."""
    if statement.type != "expression_statement" or not statement.named_children:
        return None
    inner = statement.named_children[0]
    return operands(inner) if inner.type == "assignment_expression" else None


def strip_parentheses(node: Node) -> Node:
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
    return Replacement(node.start_byte, node.end_byte, text)


def insert_before(node: Node, text: str) -> Replacement:
    return Replacement(node.start_byte, node.start_byte, text)


def insert_after(node: Node, text: str) -> Replacement:
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


@dataclass(frozen=True)
class Loop:
    """`for (type variable = start; variable < bound; variable += step)` whose body leaves the variable alone.

    `comparison` is one of < <= != (counting up; any other loop is not canonical); `step` is the step's text,
    "1" for an increment; `pragma` is an unroll pragma right before it.
    """

    variable: str
    type: str
    start: Node
    comparison: str
    bound: Node
    step: str
    body: Node
    pragma: Node | None
    node: Node


def as_loop(node: Node) -> Loop | None:
    """The canonical form of a `for_statement`, if it has it."""
    initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    update, body = node.child_by_field_name("update"), node.child_by_field_name("body")
    if initializer is None or condition is None or update is None or body is None:
        return None
    variables = declared(initializer) if initializer.type == "declaration" else ()
    if len(variables) != 1 or variables[0].value is None or condition.type != "binary_expression":
        return None
    variable = variables[0]
    comparison = text_of(field(condition, "operator"))
    if text_of(field(condition, "left")) != variable.name or comparison not in {"<", "<=", "!="}:
        return None
    step = _step(update, variable.name)
    if step is None or variable.name in assigned_names(body):
        return None
    bound = field(condition, "right")
    if identifiers(bound) & assigned_names(body).keys():
        return None
    return Loop(
        variable=variable.name,
        type=variable.type,
        start=variable.value or node,
        comparison=comparison,
        bound=bound,
        step=step,
        body=body,
        pragma=unroll_pragma(node),
        node=node,
    )


def unroll_pragma(node: Node) -> Node | None:
    """The `#pragma unroll` right before a loop."""
    before = node.prev_named_sibling
    if before is None or before.type != "preproc_call":
        return None
    words = text_of(before).split()
    return before if words[:2] == ["#pragma", "unroll"] else None


def _step(update: Node, variable: str) -> str | None:
    if update.type == "update_expression" and text_of(field(update, "argument")) == variable:
        return "1" if text_of(field(update, "operator")) == "++" else None
    if update.type == "assignment_expression" and text_of(field(update, "left")) == variable:
        step = text_of(field(update, "right"))
        operator = text_of(field(update, "operator"))
        return step if operator == "+=" and not step.startswith("-") else None
    return None


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
    shared: bool
    extern: bool
    extents: tuple[Node | None, ...]
    value: Node | None
    node: Node

    @property
    def alone(self) -> bool:
        """Whether the statement declares nothing else."""
        return len(self.node.children_by_field_name("declarator")) == 1


def parameter_of(node: Node) -> Parameter:
    """What a `parameter_declaration` declares."""
    pointers = list(walk(node, "pointer_declarator", "array_declarator", "reference_declarator"))
    declarator = node.child_by_field_name("declarator")
    return Parameter(
        name=text_of([*_declarators(declarator)][-1]) if declarator is not None else _UNKNOWN,
        type=text_of(field(node, "type")),
        pointer=bool(pointers),
        const=_has_qualifier(node, "const"),
        restrict=any(_has_qualifier(pointer, "__restrict__", "__restrict") for pointer in pointers),
        node=node,
    )


def declared(node: Node) -> tuple[Declaration, ...]:
    return tuple(_declaration(node, child) for child in node.children_by_field_name("declarator"))


def _declaration(node: Node, declarator: Node) -> Declaration:
    value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
    *outer, name = _declarators(declarator)
    return Declaration(
        name=text_of(name),
        type=text_of(field(node, "type")),
        pointer=any(each.type in {"pointer_declarator", "reference_declarator"} for each in outer),
        shared=_has_qualifier(node, "__shared__"),
        extern=any(text_of(child) == "extern" for child in node.children),
        extents=tuple(
            each.child_by_field_name("size") for each in reversed(outer) if each.type == "array_declarator"
        ),
        value=value,
        node=node,
    )


def _declarators(node: Node) -> Iterator[Node]:
    """A declarator and those inside it; the last one is the name."""
    yield node
    if node.type in _DECLARATORS and node.named_children:
        yield from _declarators(node.child_by_field_name("declarator") or node.named_children[-1])


def _has_qualifier(node: Node, *texts: str) -> bool:
    return any(text_of(child) in texts for child in node.children if child.type == "type_qualifier")
