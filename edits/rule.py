"""A rule: a plain function that proposes edits of one pattern, and what the registry must know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Generic, TypeVar

from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Bottleneck, Diagnosis, Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Launch, LaunchPlan, ResolvedPlan, resolve
from mctskernel.core.task import Shape, Task
from mctskernel.edits.syntax import Function, Source


@dataclass(frozen=True)
class Subject:
    """What rules of any language see: a kernel that works, whose plan resolves at every shape of the task.

    Rules must keep the kernel correct at every one of `shapes`, held-out ones included.
    """

    task: Task
    kernel: Kernel
    plan: LaunchPlan
    evaluation: Evaluation

    @property
    def diagnosis(self) -> Diagnosis:
        """What binds the kernel; without causes when nothing is known."""
        return self.evaluation.diagnosis or Diagnosis(())

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape that the task declares."""
        return self.task.shapes

    @cached_property
    def resolved(self) -> tuple[ResolvedPlan, ...]:
        """The plan at each of `shapes`."""
        return tuple(resolve_at(self.task, self.kernel, self.plan, shape) for shape in self.shapes)

    def is_output(self, name: str) -> bool:
        """Whether a buffer is an output of the task."""
        return any(tensor.name == name for tensor in self.task.outputs)

    def is_input(self, name: str) -> bool:
        """Whether a buffer is an input of the task."""
        return any(tensor.name == name for tensor in self.task.inputs)


@dataclass(frozen=True)
class Context(Subject):
    """What a rule for CUDA C++ sees."""

    source: Source

    @cached_property
    def launched(self) -> tuple[tuple[Launch, Function], ...]:
        """Launches with their cleanly parsed, non-template functions. One launched twice comes twice."""
        pairs = ((launch, self.source.kernel(launch.kernel)) for launch in self.plan.launches)
        return tuple((launch, f) for launch, f in pairs if f is not None and not f.is_template)


Seen = TypeVar("Seen", bound=Subject)


@dataclass(frozen=True)
class Rule(Generic[Seen]):
    """A named pattern. `addresses` are the bottlenecks that it may relieve, `prior` its promise otherwise.

    `propose` yields edits whose results are correct at every shape; nothing where its pattern isn't found.
    """

    name: str
    category: Category
    addresses: frozenset[Bottleneck]
    propose: Callable[[Seen], Iterable[Edit]]
    prior: float = 1.0


def edit(
    category: Category,
    title: str,
    source: str,
    *,
    rationale: str,
    expected_effect: str,
    prior: float = 1.0,
    decides: Mapping[str, int] = MappingProxyType({}),
) -> Edit:
    """An edit that gives the whole new text; `prior` here multiplies its rule's.

    `decides` are the numbers that it sets, by name; without any, it decides what its title says.
    """
    factors = tuple(Factor(name, value) for name, value in decides.items())
    return Edit(category, title, WholeSource(source), rationale, expected_effect, prior, factors=factors)


def resolve_at(task: Task, kernel: Kernel, plan: LaunchPlan, shape: Shape) -> ResolvedPlan:
    """A plan at one shape; raises LaunchPlanError."""
    return resolve(plan, task.names(shape, kernel), task.buffer_names)
