"""What a rule for Triton sees of a kernel, and how it writes what it makes of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from mctskernel.core.expression import ExpressionError, Number, evaluate, names_in
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Launch, LaunchPlan, TritonOptions
from mctskernel.edits.plan_text import with_plan
from mctskernel.edits.rule import Subject
from mctskernel.edits.triton.module import Module, Replacement, names_read, parameters, parse, replaced


@dataclass(frozen=True)
class LaunchedFunction:
    """A launch with the function that it runs: `index` is the launch's place in the plan.

    `bound` maps parameters that aren't constexprs to the plan's arguments.
    """

    index: int
    launch: Launch
    function: ast.FunctionDef
    options: TritonOptions
    bound: dict[str, str | int | float]

    @property
    def constexprs(self) -> dict[str, str | int | float]:
        """What the plan gives the constexpr parameters, as written."""
        return dict(self.options.constexprs)


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
        return tuple(
            each
            for each in self.launched
            if names.count(each.launch.kernel) == 1 and self._named_once(each.launch.kernel)
        )

    def values(self, expression: str | float) -> tuple[Number, ...] | None:
        """An expression of the plan at each of `shapes`; None where it has no value."""
        try:
            return tuple(evaluate(expression, self.task.names(shape, self.kernel)) for shape in self.shapes)
        except ExpressionError:
            return None

    def is_buffer(self, name: object) -> bool:
        """Whether the plan means a tensor or a scratch buffer by a name."""
        scratch = {each.name for each in self.plan.scratch}
        return name in scratch or name in self.task.buffer_names

    def written(self, replacements: Iterable[Replacement], plan: LaunchPlan | None = None) -> str:
        """The source with parts of its code replaced, and with another plan where one is given."""
        return self.with_text(replaced(self.module, replacements), plan)

    def with_text(self, text: str, plan: LaunchPlan | None = None) -> str:
        """A source, with another plan where one is given; constants that only the old plan named go."""
        if plan is None or plan == self.plan:
            return text
        text = with_plan(Kernel(text, Language.TRITON), plan).source
        module, unused = parse(text), _names_of(self.plan) - _names_of(plan)
        if module is None or not unused:
            return text
        used = frozenset[str]().union(*map(_free_names, module.functions.values()))
        return replaced(module, module.undefine(unused - used))

    def with_launch(self, index: int, launch: Launch) -> LaunchPlan:
        """The plan with one launch in another's place."""
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
        options = TritonOptions(
            tuple((dict(before.constexprs) if constexprs is None else constexprs).items()),
            before.num_warps if num_warps is None else num_warps,
            before.num_stages if num_stages is None else num_stages,
        )
        return self.with_launch(index, replace(launch, triton=options))

    def _named_once(self, name: str) -> bool:
        names = [node.id for node in ast.walk(self.module.tree) if isinstance(node, ast.Name)]
        return name not in names


def _names_of(plan: LaunchPlan) -> frozenset[str]:
    """The names in a plan's expressions."""
    expressions: list[str | int | float] = [extent for each in plan.scratch for extent in each.shape]
    for launch in plan.launches:
        options = launch.triton or TritonOptions()
        expressions += [*launch.grid, *launch.args, *(value for _, value in options.constexprs)]
        expressions += [options.num_warps, options.num_stages]
    return frozenset[str]().union(*map(names_in, expressions))


def _free_names(function: ast.FunctionDef) -> frozenset[str]:
    return names_read(function) - frozenset(parameters(function))
