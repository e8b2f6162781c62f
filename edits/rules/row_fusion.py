"""Launches that go over the same rows, as one kernel: what one leaves for the next stays in registers."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.expression import evaluate_int
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch, LaunchPlan
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions
from mctskernel.edits.indexing import Guarded, ThreadIndex, plan_expression, replace_names
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rewrite import (
    changed,
    indented,
    names_used,
    only_launches,
    whole_function,
    without_dead_macros,
)
from mctskernel.edits.rule import Context, Proposal, rule
from mctskernel.edits.rules.row_parallel import row_threads


@dataclass(frozen=True)
class Part:
    """A launch whose threads take one `index` each: a row, or an element of rows that are `length` long.

    `length` is an expression of the launch plan, None for a row.
    """

    launch: Launch
    function: cu.Function
    index: ThreadIndex
    statements: tuple[Node, ...]
    divisor: Node | None = None
    length: str | None = None

    def argument(self, parameter: str) -> str:
        """The plan's argument of a parameter."""
        position = [each.name for each in self.function.parameters].index(parameter)
        return str(self.launch.args[position])

    def is_row(self, node: Node) -> bool:
        """Whether an expression is the number of the thread's row."""
        return _bare(node) in self._rows

    def is_column(self, node: Node) -> bool:
        """Whether an expression is the number of the thread's element in its row."""
        return _bare(node) in self._columns

    @cached_property
    def _rows(self) -> frozenset[str]:
        if self.divisor is None:
            return frozenset({self.index.name})
        return self._spellings(f"{self.index.name}/{_bare(self.divisor)}")

    @cached_property
    def _columns(self) -> frozenset[str]:
        if self.divisor is None:
            return frozenset()
        return self._spellings(f"{self.index.name}%{_bare(self.divisor)}")

    def _spellings(self, number: str) -> frozenset[str]:
        """A number, and the names that are given to it."""
        names = (name for name, value in definitions(self.function).items() if _bare(value) == number)
        return frozenset({number, *names})


def part_of(context: Context, launch: Launch, function: cu.Function) -> Part | None:
    """A launch as a row or an element for each thread, if its threads have nothing to do with each other."""
    rows = row_threads(context, launch, function)
    if rows is None or len(rows.body.prologue) != 1 or launch.shared != 0:
        return None
    body, index = rows.body, rows.index
    if len(launch.args) != len(function.parameters) or index.declaration.node != body.prologue[0]:
        return None
    if not _is_plain(function, body):
        return None
    part = Part(launch, function, index, body.statements)
    divisors = {_bare(node): node for node in _divisors(part)}
    if not divisors:
        return part
    (divisor, *others) = divisors.values()
    length = plan_expression(divisor, function, launch, context.source)
    simple = all(node.type in {"declaration", "expression_statement"} for node in body.statements)
    if length is None or others or not simple:
        return None
    return dataclasses.replace(part, divisor=divisor, length=length)


def _divisors(part: Part) -> Iterator[Node]:
    """What the index of a part is divided by, remainders included."""
    for node in part.statements:
        for found in cu.walk(node, "binary_expression"):
            left, operator, right = cu.operands(found) or (found, "", found)
            if operator in {"/", "%"} and cu.text_of(cu.strip_parentheses(left)) == part.index.name:
                yield right


def _is_plain(function: cu.Function, body: Guarded) -> bool:
    """Whether it is a function by itself whose threads are numbered by the prologue alone, use pointers for nothing
    but elements, and all come to the end of what is guarded.
    """
    elsewhere = [n for n in cu.walk(function.body, "field_expression") if not cu.within(n, body.prologue[0])]
    early = [n for node in body.statements for n in cu.walk(node, "return_statement", "goto_statement")]
    names = [cu.text_of(node) for node in cu.walk(function.body, "identifier")]
    arrays = [access.array for access in function.accesses]
    parent = function.node.parent
    return (
        not elsewhere
        and not early
        and (parent is None or parent.type != "declaration_list")
        and all(cu.text_of(each.node).endswith(each.name) for each in function.parameters)
        and all(
            names.count(each.name) == arrays.count(each.name) for each in function.parameters if each.pointer
        )
    )


def _bare(node: Node) -> str:
    return cu.squeezed(cu.strip_parentheses(node))


_MOST_COLUMNS = 110


@dataclass(frozen=True)
class Fused:
    """What comes of some parts in one kernel.

    `parameters` are names and what they are declared as, by argument; `lines` are what is done for a row. `values` are
    variables that hold what was computed for the row, by the buffer that it goes to; no other code may touch what is in
    `written`. `taken` are names that the next part can't have.
    """

    row: str
    parameters: Mapping[str, tuple[str, cu.Parameter]]
    taken: frozenset[str]
    lines: tuple[str, ...] = ()
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@rule(Category.FUSION, 0.5, "dram_bandwidth l2_bandwidth launch_overhead")
def fuse_rows(context: Context) -> Iterator[Proposal]:
    """Each longest run of launches that can be one kernel with a thread for each row."""
    found = {launch.kernel: part_of(context, launch, function) for launch, function in only_launches(context)}
    waiting = [found.get(launch.kernel) for launch in context.plan.launches]
    while waiting:
        run, fused = _longest_run(context, waiting)
        waiting = waiting[max(1, len(run)) :]
        if fused is None or len(run) < 2:
            continue
        yield Proposal(
            f"fuse {_listed(run)}",
            _text(context, run, fused),
            rationale=(
                f"{len(run)} launches go over the same rows, and each reads from memory what others left there for its "
                "row; one kernel keeps that in registers, and its threads can share a row afterwards."
            ),
            expected_effect=f"{len(run) - 1} launches fewer, and a row that is read again while it is near.",
        )


def _longest_run(context: Context, waiting: Sequence[Part | None]) -> tuple[tuple[Part, ...], Fused | None]:
    """The parts from the first on that can be fused, and what comes of them."""
    run: tuple[Part, ...] = ()
    fused: Fused | None = None
    for part in waiting:
        longer = _fused(context, (*run, part)) if part is not None else None
        if part is None or longer is None:
            break
        run, fused = (*run, part), longer
    return run, fused


def _fused(context: Context, parts: Sequence[Part]) -> Fused | None:
    """The parts as one kernel, if that computes the same: a row's first, and then a row's or its elements'."""
    first = parts[0]
    if first.length is not None or any(part.index.type != first.index.type for part in parts):
        return None
    if not all(_same_rows(context, first, part) for part in parts):
        return None
    inside = [part.launch for part in parts]
    elsewhere = {str(a) for launch in context.plan.launches if launch not in inside for a in launch.args}
    outputs = {tensor.name for tensor in context.task.outputs}
    fused = Fused(
        first.index.name, {}, context.source.macro_names | context.source.macro_words | {first.index.name}
    )
    for part in parts:
        longer = _with_part(context, fused, part, frozenset(elsewhere | outputs))
        if longer is None:
            return None
        fused = longer
    return fused


def _same_rows(context: Context, first: Part, part: Part) -> bool:
    """Whether a part goes over as many rows as the first, at every shape of the task."""
    for shape in context.shapes:
        names = context.task.names(shape, context.kernel)
        rows = evaluate_int(first.index.extent, names)
        length = evaluate_int(part.length, names) if part.length is not None else 1
        if evaluate_int(part.index.extent, names) != rows * length:
            return False
    return True


def _with_part(context: Context, fused: Fused, part: Part, wanted: frozenset[str]) -> Fused | None:
    """One more part, if what it reads for a row comes from the row alone. `wanted` are buffers that others read."""
    every = [access for node in part.statements for access in cu.accesses(node)]
    found = [access for access in every if part.function.parameter(access.array) is not None]
    reads = frozenset(part.argument(access.array) for access in found if access.reads)
    writes = frozenset(part.argument(access.array) for access in found if access.writes)
    if writes & (fused.read | fused.written | fused.values.keys()) or reads & fused.written:
        return None
    handed = [access for access in found if part.argument(access.array) in fused.values]
    if not all(len(access.indices) == 1 and part.is_row(access.indices[0]) for access in handed):
        return None
    parameters = _with_parameters(fused, part)
    if parameters is None:
        return None
    column, *_ = cu.fresh_names(fused.taken | _names_of(part), "k")
    names = _new_names(fused, part, parameters, column)
    length = replace_names(cu.text_of(part.divisor), names) if part.divisor is not None else ""
    rewrite = _Rewriting(context, part, fused, names, column, length)
    # Names inside a loop end with it.
    outside = {names[d.name] for d in part.function.declarations if d.node in part.statements}
    values, lines, taken = dict(fused.values), list[str](), set(fused.taken) | outside
    for position, node in enumerate(part.statements):
        store = _store_for_row(part, node, found) if part.length is None else None
        if store is None:
            lines += rewrite.lines(node)
            continue
        buffer, parameter, value = store
        values[buffer] = names.get(cu.text_of(value), "")
        if not _stays(part, value, parameter, part.statements[position + 1 :]):
            (values[buffer],) = cu.fresh_names(taken, f"row_{parameter.name}")
            lines.append(f"{parameter.type} {values[buffer]} = {rewrite.text(value)};")
        taken.add(values[buffer])
        if buffer in wanted:
            lines.append(f"{parameters[buffer][0]}[{fused.row}] = {values[buffer]};")
    return dataclasses.replace(
        fused,
        parameters=parameters,
        taken=frozenset(taken | {name for name, _ in parameters.values()}),
        lines=(*fused.lines, *(rewrite.over_columns(lines) if part.length is not None else lines)),
        values=values,
        read=fused.read | (reads - fused.values.keys()),
        written=fused.written | (writes - values.keys()),
    )


def _with_parameters(fused: Fused, part: Part) -> dict[str, tuple[str, cu.Parameter]] | None:
    """The parameters with those of a part; equal arguments share a parameter, and must have the same type."""
    parameters = dict(fused.parameters)
    for parameter in part.function.parameters:
        argument = part.argument(parameter.name)
        if argument not in parameters:
            used = fused.taken | {name for name, _ in parameters.values()}
            (name,) = cu.fresh_names(used, parameter.name)
            parameters[argument] = (name, parameter)
        before = parameters[argument][1]
        if (before.type, before.pointer) != (parameter.type, parameter.pointer):
            return None
    return parameters


def _new_names(
    fused: Fused, part: Part, parameters: Mapping[str, tuple[str, cu.Parameter]], column: str
) -> dict[str, str]:
    """What each name of a part is called in the fused kernel; the index of an element has no name there."""
    names = {each.name: parameters[part.argument(each.name)][0] for each in part.function.parameters}
    used = fused.taken | set(names.values()) | _names_of(part)
    for declaration in part.function.declarations:
        name, value = declaration.name, declaration.value
        if name in names or name == part.index.name:
            continue
        if value is not None and part.length is not None and (part.is_row(value) or part.is_column(value)):
            names[name] = fused.row if part.is_row(value) else column
        elif name in fused.taken or name in {new for new in names.values() if new != name}:
            (names[name],) = cu.fresh_names(used, name)
            used |= {names[name]}
        else:
            names[name] = name
    if part.length is None:
        names[part.index.name] = fused.row
    return names


def _names_of(part: Part) -> frozenset[str]:
    return cu.identifiers(part.function.node)


@dataclass(frozen=True)
class _Rewriting:
    """A part's statements with the names of the fused kernel: those of elements with a `column` below a `length`."""

    context: Context
    part: Part
    fused: Fused
    names: Mapping[str, str]
    column: str
    length: str

    def lines(self, node: Node) -> list[str]:
        """A statement; nothing for one that only names the row or the column of an element."""
        if self.part.length is not None and node.type == "declaration":
            values = [
                d.value for d in self.part.function.declarations if d.node == node and d.value is not None
            ]
            if values and all(self.part.is_row(value) or self.part.is_column(value) for value in values):
                return []
        return changed(self.context.source, node, self._changes(node))

    def text(self, node: Node) -> str:
        """An expression."""
        return "\n".join(changed(self.context.source, node, self._changes(node)))

    def over_columns(self, lines: Sequence[str]) -> list[str]:
        """Lines for one element in a loop over those of a row."""
        column = self.column
        head = f"for ({self.part.index.type} {column} = 0; {column} < {self.length}; ++{column}) {{"
        return [head, *indented(lines), "}"]

    def _changes(self, node: Node) -> list[cu.Replacement]:
        new = self._meaning(node)
        if new is not None:
            return [cu.swap(node, new)] if new != cu.text_of(node) else []
        return [change for child in node.named_children for change in self._changes(child)]

    def _meaning(self, node: Node) -> str | None:
        """What an expression is called as a whole, if it isn't called what its parts are."""
        part = self.part
        if node.type == "subscript_expression":
            buffer = self._buffer(node)
            return self.fused.values.get(buffer) if buffer is not None else None
        if node.type == "binary_expression" and part.length is not None:
            return self.fused.row if part.is_row(node) else self.column if part.is_column(node) else None
        if node.type != "identifier":
            return None
        if part.length is None or cu.text_of(node) != part.index.name:
            return self.names.get(cu.text_of(node), cu.text_of(node))
        length = self.length if re.fullmatch(r"\w+", self.length) else f"({self.length})"
        element = f"{self.fused.row} * {length} + {self.column}"
        alone = node.parent is not None and node.parent.type in {"subscript_argument_list", "argument_list"}
        return element if alone else f"({element})"

    def _buffer(self, node: Node) -> str | None:
        (access, *_) = cu.accesses(node) or (None,)
        is_parameter = access is not None and self.part.function.parameter(access.array) is not None
        return self.part.argument(access.array) if access is not None and is_parameter else None


def _store_for_row(
    part: Part, node: Node, found: Sequence[cu.Access]
) -> tuple[str, cu.Parameter, Node] | None:
    """The buffer, its parameter and the value of a statement that stores what a part computes for its row.

    None unless nothing else in the part touches the buffer.
    """
    parts = cu.assignment(node)
    inside = [access for access in found if cu.within(access.node, node) and access.writes]
    if parts is None or len(inside) != 1 or inside[0].reads:
        return None
    (target, _, value), (access,) = parts, inside
    parameter = part.function.parameter(access.array)
    alone = sum(other.array == access.array for other in found) == 1
    at_row = len(access.indices) == 1 and part.is_row(access.indices[0])
    if parameter is None or not alone or not at_row or access.node != target:
        return None
    return part.argument(access.array), parameter, value


def _stays(part: Part, value: Node, parameter: cu.Parameter, later: Sequence[Node]) -> bool:
    """Whether a value is a variable of the buffer's type that is seen by what follows and changes no more."""
    name = cu.text_of(value)
    declared = [d for d in part.function.declarations if d.name == name]
    if len(declared) != 1 or declared[0].node not in part.statements:
        return False
    same = declared[0].type == parameter.type and not declared[0].extents and not declared[0].pointer
    return same and not any(name in cu.assigned_names(node) for node in later)


def _text(context: Context, run: Sequence[Part], fused: Fused) -> str:
    """The kernel with one function and one launch in place of those of a run."""
    first, source = run[0], context.source
    name = cu.fresh_name(source, "fused_rows")
    guard = f"if ({fused.row} < {first.index.bound}) {{"
    body = [cu.text_of(first.index.declaration.node), guard, *indented(fused.lines), "}"]
    used = names_used(["void f() {", *body, "}"])
    kept = {argument: each for argument, each in fused.parameters.items() if each[0] in used}
    declared = ", ".join(_declared(parameter, new) for new, parameter in kept.values())
    head = textwrap.wrap(
        f'extern "C" __global__ void {name}({declared}) {{',
        _MOST_COLUMNS,
        subsequent_indent="        ",
        break_long_words=False,
    )
    about = f"// {_listed(run)}, with a thread for each row."
    spans = [whole_function(source, part.function) for part in run]
    text = cu.replace(
        source,
        [
            cu.Replacement(*spans[0], "\n".join([about, *head, *indented(body), "}"])),
            *(cu.Replacement(start, end, "") for start, end in spans[1:]),
        ],
    )
    text = re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"
    return without_dead_macros(source, with_plan(Kernel(text), _plan(context, run, name, tuple(kept))).source)


def _listed(run: Sequence[Part]) -> str:
    *names, last = (part.function.name for part in run)
    return f"{', '.join(names)} and {last}"


def _declared(parameter: cu.Parameter, name: str) -> str:
    return re.sub(rf"\b{re.escape(parameter.name)}$", name, cu.text_of(parameter.node))


def _plan(context: Context, run: Sequence[Part], name: str, arguments: Sequence[str]) -> LaunchPlan:
    given = {str(argument): argument for part in run for argument in part.launch.args}
    args = tuple(given[argument] for argument in arguments)
    fused = dataclasses.replace(run[0].launch, kernel=name, args=args)
    inside = [part.launch for part in run]
    launches = tuple(
        fused if launch is inside[0] else launch
        for launch in context.plan.launches
        if launch is inside[0] or launch not in inside
    )
    used = {str(argument) for launch in launches for argument in launch.args}
    scratch = tuple(each for each in context.plan.scratch if each.name in used)
    return dataclasses.replace(context.plan, launches=launches, scratch=scratch)
