"""A Triton module as a syntax tree whose nodes know their place in the text."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mctskernel.core.edit import Category
from mctskernel.core.expression import ExpressionError, evaluate, names_in
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Launch, LaunchPlan, TritonOptions
from mctskernel.edits import rule as rules
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rule import Proposal, Rule, Subject
from mctskernel.edits.syntax import Constant, Replacement


@dataclass(frozen=True)
class Module:
    text: str
    tree: ast.Module

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions under a bare `@triton.jit`, by name."""
        return {
            node.name: node
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef)
            and [ast.unparse(each) for each in node.decorator_list] == ["triton.jit"]
        }

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """The module's constants that are written as plain numbers, in order."""
        return tuple(
            Constant(name, value, *self.span(number))
            for statement in self.tree.body
            if isinstance(statement, ast.Assign)
            for name, value, number in _constant(statement)
        )

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        # Only trees that were built by hand have no end.
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self._offset(node.lineno, node.col_offset), end

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def lines_of(self, statements: Sequence[ast.stmt]) -> tuple[int, int]:
        """Where the lines of consecutive statements start and end, comments at the ends of the lines included."""
        first, last = statements[0], statements[-1]
        start = self._starts[first.lineno - 1]
        end = self.text.find("\n", self.span(last)[1])
        return start, len(self.text) if end < 0 else end + 1

    def indentation(self, statement: ast.stmt) -> str:
        return " " * statement.col_offset

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Replacement:
        return Replacement(*self.span(node), text)

    def line_starts(self, start: int, end: int) -> Iterator[int]:
        """Where the lines of a part of the text start, but for blank ones."""
        return (
            start + match.start() for match in re.finditer(r"^(?=.*\S)", self.text[start:end], re.MULTILINE)
        )

    def insert_before(self, statement: ast.stmt, text: str) -> Replacement:
        """Lines before a statement, indented as it is; `text` has no indentation of its own."""
        start = self._starts[statement.lineno - 1]
        lines = "".join(f"{self.indentation(statement)}{line}\n" for line in text.splitlines())
        return Replacement(start, start, lines)

    def parameter(self, function: ast.FunctionDef, text: str) -> Replacement:
        """A new parameter, after the last one."""
        nodes: list[ast.arg | ast.expr] = [*function.args.args, *function.args.defaults]
        end = max(self.span(each)[1] for each in nodes)
        return Replacement(end, end, f", {text}{' = 0' if function.args.defaults else ''}")

    def define(self, name: str, value: int) -> Replacement:
        """A new constant, after the last one or after the imports."""
        places = [s for s in self.tree.body if isinstance(s, ast.Assign | ast.Import | ast.ImportFrom)]
        end = self.lines_of([places[-1]])[1]
        between = "" if isinstance(places[-1], ast.Assign) else "\n"
        return Replacement(end, end, f"{between}{name} = {value}\n")

    def undefine(self, names: Collection[str]) -> Iterator[Replacement]:
        """Constants gone; the blank line before the only one goes too."""
        statements = [s for s in self.tree.body if isinstance(s, ast.Assign)]
        for statement in statements:
            match statement.targets:
                case [ast.Name(id=name)] if name in names:
                    start, end = self.lines_of([statement])
                    blank = len(statements) == 1 and self.text.endswith("\n\n", 0, start)
                    yield Replacement(start - blank, end, "")

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *(match.end() for match in re.finditer("\n", self.text)))

    def _offset(self, line: int, column: int) -> int:
        """Columns of the tree count bytes; texts are cut at characters."""
        start = self._starts[line - 1]
        piece = self.text[start : start + column]
        return start + (column if piece.isascii() else len(self.text[start:].encode()[:column].decode()))


def parse(text: str) -> Module | None:
    """The module; None where the text is no Python, or lines or blanks aren't what the rules count on."""
    if "\r" in text or "\t" in text or "\f" in text:
        return None
    try:
        module = Module(text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return module if _one_statement_a_line(module) else None


def replaced(module: Module, replacements: Iterable[Replacement]) -> str:
    """The text with all replacements made at once. They must not overlap (ValueError)."""
    pieces, position = list[str](), 0
    for item in sorted(replacements, key=lambda item: (item.start, item.end)):
        if item.start < position:
            raise ValueError(f"The replacement of characters {item.start} to {item.end} overlaps another.")
        pieces += [module.text[position : item.start], item.text]
        position = item.end
    return "".join([*pieces, module.text[position:]])


def names_read(node: ast.AST) -> frozenset[str]:
    """The names that a piece of code reads, modules included."""
    return frozenset(
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )


def names_assigned(node: ast.AST) -> frozenset[str]:
    """The names that a piece of code assigns, loop variables included."""
    return frozenset(
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )


def assigned_once(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The values of names that one statement assigns."""
    stores = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    statements = (n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.AnnAssign))
    found = ((name, each.value) for each in statements for name in names_assigned(each))
    return {name: value for name, value in found if value is not None and stores.count(name) == 1}


def dependent(function: ast.FunctionDef, name: str) -> frozenset[str]:
    """A name, and those whose values depend on its own."""
    found, before = {name}, 0
    while len(found) > before:
        before = len(found)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign) and names_read(node.value) & found:
                found |= names_assigned(node)
    return frozenset(found)


def calls(node: ast.AST, *names: str) -> Iterator[ast.Call]:
    """The calls of the named functions of `tl`, in no particular order; of all functions where none is named."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and (not names or called(each) in names):
            yield each


def called(node: ast.expr) -> str:
    """The function of `tl` that a node calls, empty where it calls none."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="tl"), attr=name)):
            return name
    return ""


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument of a call, given by position or by name."""
    if position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(each.arg for each in function.args.args)


def _constant(statement: ast.Assign) -> Iterator[tuple[str, int, ast.expr]]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as value) as number):
            if not isinstance(value, bool):
                yield name, value, number


def _one_statement_a_line(module: Module) -> bool:
    """Whether every statement begins a line of its own, so that whole lines can be moved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.stmt):
            start = module.span(node)[0]
            line = module.text.rfind("\n", 0, start) + 1
            if module.text[line:start].strip(" "):
                return False
            end = module.text.find("\n", module.span(node)[1])
            rest = module.text[module.span(node)[1] : len(module.text) if end < 0 else end].strip()
            if rest and not rest.startswith("#"):
                return False
    return True


@dataclass(frozen=True)
class LaunchedFunction:
    """A launch, the `index`-th of the plan, with its function; `bound` are arguments of what isn't a constexpr."""

    index: int
    launch: Launch
    function: ast.FunctionDef
    options: TritonOptions
    bound: dict[str, str | int | float]

    @property
    def constexprs(self) -> dict[str, str | int | float]:
        return dict(self.options.constexprs)

    @property
    def grid_names(self) -> frozenset[str]:
        """The names that the grid depends on."""
        return frozenset[str]().union(*map(names_in, self.launch.grid))


@dataclass(frozen=True)
class TritonContext(Subject):
    """A Triton kernel that works."""

    module: Module

    @cached_property
    def launched(self) -> tuple[LaunchedFunction, ...]:
        """The launches whose functions are found and take what the plan gives; one launched twice comes twice."""
        found = []
        for index, launch in enumerate(self.plan.launches):
            function = self.module.functions.get(launch.kernel)
            if function is None or launch.triton is None:
                continue
            constexprs = dict(launch.triton.constexprs)
            others = [name for name in parameters(function) if name not in constexprs]
            if len(others) == len(launch.args):
                bound = dict(zip(others, launch.args, strict=True))
                found.append(LaunchedFunction(index, launch, function, launch.triton, bound))
        return tuple(found)

    @cached_property
    def launched_once(self) -> tuple[LaunchedFunction, ...]:
        """Those whose function no other launch runs and no other function calls."""
        names = [launch.kernel for launch in self.plan.launches]
        names += [node.id for node in ast.walk(self.module.tree) if isinstance(node, ast.Name)]
        return tuple(each for each in self.launched if names.count(each.launch.kernel) == 1)

    @cached_property
    def decided(self) -> TritonContext:
        """The same kernel without the branches that constexprs rule out at every shape."""
        for launched in self.launched_once:
            values = {name: self.values(bound) for name, bound in launched.constexprs.items()}
            known = {name: each[0] for name, each in values.items() if each and len({*each}) == 1}
            for node in ast.walk(launched.function):
                if not isinstance(node, ast.If) or not self.module.text_of(node).startswith("if"):
                    continue
                if not names_read(node.test) <= known.keys():
                    continue
                try:
                    chosen = node.body if evaluate(ast.unparse(node.test), known) else node.orelse
                except ExpressionError:
                    continue
                start, end = self.module.lines_of(chosen) if chosen else (0, 0)
                text = re.sub(r"\Aelif\b", "if", textwrap.dedent(self.module.text[start:end]))
                lines = textwrap.indent(text, self.module.indentation(node))
                text = replaced(self.module, [Replacement(*self.module.lines_of([node]), lines)])
                if (module := parse(text)) is not None:
                    kernel = Kernel(text, Language.TRITON)
                    return replace(self, kernel=kernel, module=module).decided
        return self

    def unused(self, *names: str) -> bool:
        """Whether the module's text has none of these names."""
        return not any(re.search(rf"\b{name}\b", self.module.text) for name in names)

    def written(self, replacements: Iterable[Replacement], plan: LaunchPlan | None = None) -> str:
        """The source with parts replaced and perhaps another plan, less constants that only the old plan named."""
        text = replaced(self.module, replacements)
        if plan is None or plan == self.plan:
            return text
        text = with_plan(Kernel(text, Language.TRITON), plan).source
        module, unused = parse(text), _names_of(self.plan) - _names_of(plan)
        if module is None or not unused:
            return text
        functions = module.functions.values()
        used = frozenset[str]().union(*(names_read(each) - {*parameters(each)} for each in functions))
        return replaced(module, module.undefine(unused - used))

    def with_launch(self, index: int, launch: Launch) -> LaunchPlan:
        launches = (*self.plan.launches[:index], launch, *self.plan.launches[index + 1 :])
        return replace(self.plan, launches=launches)

    def with_options(
        self,
        index: int,
        *,
        constexprs: dict[str, str | int | float] | None = None,
        num_warps: int | str | None = None,
        num_stages: int | str | None = None,
    ) -> LaunchPlan:
        """The plan with other options for one launch; those not named stay."""
        launch = self.plan.launches[index]
        before = launch.triton or TritonOptions()
        options = replace(
            before,
            constexprs=tuple((dict(before.constexprs) if constexprs is None else constexprs).items()),
            num_warps=before.num_warps if num_warps is None else num_warps,
            num_stages=before.num_stages if num_stages is None else num_stages,
        )
        return self.with_launch(index, replace(launch, triton=options))


def rule(
    category: Category, prior: float, addresses: str
) -> Callable[[Callable[[TritonContext], Iterable[Proposal]]], Rule[TritonContext]]:
    """Make a rule for Triton of a function; see `edits.rule`."""
    return rules.rule(category, prior, addresses, prefix="triton-")


def _names_of(plan: LaunchPlan) -> frozenset[str]:
    """The names in a plan's expressions."""
    expressions: list[str | int | float] = [extent for each in plan.scratch for extent in each.shape]
    for launch in plan.launches:
        options = launch.triton or TritonOptions()
        expressions += [*launch.grid, *launch.args, *(value for _, value in options.constexprs)]
        expressions += [options.num_warps, options.num_stages, options.num_ctas, options.maxnreg]
    return frozenset[str]().union(*map(names_in, expressions))
