"""A rule: a plain function that proposes edits of one pattern, and what the registry must know about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

from mctskernel.core.dtypes import CUDA_TYPES, DTYPE_BYTES
from mctskernel.core.edit import Category, Edit, Factor, WholeSource
from mctskernel.core.evaluation import Bottleneck, Diagnosis, Evaluation
from mctskernel.core.expression import ExpressionError, Number, evaluate, evaluate_int
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import (
    Extent,
    Launch,
    LaunchPlan,
    LaunchPlanError,
    ResolvedPlan,
    plan_span,
)
from mctskernel.core.task import Shape, Task
from mctskernel.edits.syntax import Declaration, Function, Source, parse, text_of


@dataclass(frozen=True)
class Subject:
    """What rules see: a kernel that works. They keep it correct at each of `shapes`, held-out ones included."""

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
        return tuple(self.task.resolved(self.kernel, shape) for shape in self.shapes)

    def values(self, expression: Extent | float) -> tuple[Number, ...] | None:
        """An expression of the plan at each of `shapes`; None where it has no value."""
        try:
            return tuple(evaluate(expression, self.task.names(shape, self.kernel)) for shape in self.shapes)
        except ExpressionError:
            return None

    def equal(self, first: Extent | float, second: Extent | float) -> bool:
        """Whether two expressions of the plan have the same value at every shape."""
        return (values := self.values(first)) is not None and values == self.values(second)

    def fewest_blocks(self, launch: Launch) -> int:
        """Blocks of a launch at the smallest of the shapes that are timed."""
        position = self.plan.launches.index(launch)
        timed = self.resolved[: len(self.task.search_shapes)]
        return min(plan.launches[position].blocks for plan in timed)

    def where(self, function: str) -> str:
        """` in NAME` for titles, if the plan launches more than one function; otherwise empty."""
        launched = {launch.kernel for launch in self.plan.launches}
        return f" in {function}" if len(launched) > 1 else ""

    def dtype(self, name: object) -> str:
        """The element type of a tensor or a scratch buffer."""
        tensors = {each: buffer.dtype for each, buffer in self.task.buffers(self.shapes[0]).items()}
        return {**tensors, **{each.name: each.dtype for each in self.plan.scratch}}[str(name)]

    def is_buffer(self, name: object) -> bool:
        """Whether the plan means a tensor or a scratch buffer by a name."""
        return name in self.task.buffer_names or any(each.name == name for each in self.plan.scratch)


@dataclass(frozen=True)
class Context(Subject):
    """What a rule for CUDA C++ sees."""

    source: Source

    @cached_property
    def launched(self) -> tuple[tuple[Launch, Function], ...]:
        """Launches with their cleanly parsed, non-template functions. One launched twice comes twice."""
        pairs = ((launch, self.source.kernel(launch.kernel)) for launch in self.plan.launches)
        return tuple((launch, f) for launch, f in pairs if f is not None and not f.is_template)

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple({function.name: function for _, function in self.launched}.values())

    def constant(self, expression: Extent) -> int | None:
        """The value of an expression over the kernel's macros alone, if it is one."""
        return constant(expression, self.kernel.macros)


Seen = TypeVar("Seen", bound=Subject)


@dataclass(frozen=True)
class Proposal:
    """A whole new text of the kernel; `prior` multiplies its rule's. `factors` are the numbers that it sets, if any."""

    title: str
    source: str
    rationale: str
    expected_effect: str
    prior: float = 1.0
    factors: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Rule(Generic[Seen]):
    """A named pattern. `addresses` are the bottlenecks that it may relieve, `prior` its promise otherwise.

    `propose` yields texts whose results are correct at every shape; nothing where its pattern isn't found.
    """

    name: str
    category: Category
    addresses: frozenset[Bottleneck]
    propose: Callable[[Seen], Iterable[Proposal]]
    prior: float = 1.0

    def __call__(self, context: Seen) -> Iterator[Edit]:
        """The edits of a kernel, each with its own prior."""
        for each in self.propose(context):
            yield Edit(
                self.category,
                each.title,
                WholeSource(each.source),
                each.rationale,
                each.expected_effect,
                each.prior,
                factors=each.factors,
            )


def rule(
    category: Category, prior: float, addresses: str, *, prefix: str = ""
) -> Callable[[Callable[[Seen], Iterable[Proposal]]], Rule[Seen]]:
    """Make a rule of a function, whose name it gets; `addresses` are bottlenecks, separated by blanks."""
    bottlenecks = frozenset(Bottleneck[each.upper()] for each in addresses.split())

    def decorate(propose: Callable[[Seen], Iterable[Proposal]]) -> Rule[Seen]:
        return Rule(prefix + propose.__name__.replace("_", "-"), category, bottlenecks, propose, prior)

    return decorate


STATIC_SHARED_BYTES = 48 << 10  # what ptxas accepts as static shared memory of one kernel

TYPE_BYTES: Mapping[str, int] = {
    **{name: DTYPE_BYTES[dtype] for name, dtype in CUDA_TYPES.items()},
    "half2": 4,
    "__half2": 4,
    "float2": 8,
    "int2": 8,
    "float4": 16,
    "int4": 16,
    "double2": 16,
}
"""Sizes of the types that shared arrays are usually made of."""


@dataclass(frozen=True)
class Limits:
    """What kernels of a task may ask for at some shapes; plans that were resolved once are remembered in `known`."""

    task: Task
    shapes: tuple[Shape, ...]
    known: dict[tuple[object, ...], Mapping[str, int] | None] = field(default_factory=dict, repr=False)

    def allow(self, kernel: Kernel) -> bool:
        """Whether the plan resolves at each shape, within launch bounds and static shared memory."""
        try:
            start, end = plan_span(kernel)
        except LaunchPlanError:
            return False
        key = (kernel.language, kernel.source[start:end], *kernel.macros.items())
        if key not in self.known:
            self.known[key] = self._largest_blocks(kernel)
        blocks = self.known[key]
        if blocks is None:
            return False
        if kernel.language is not Language.CUDA:
            return True
        if "__shared__" not in kernel.source and "__launch_bounds__" not in kernel.source:
            return True
        return all(
            blocks[function.name] <= _largest_block(function, kernel.macros)
            and sum(_bytes(each, kernel.macros) for each in function.declarations if each.shared)
            <= STATIC_SHARED_BYTES
            for function in parse(_without_directives(kernel.source)).kernels
            if function.name in blocks
        )

    def _largest_blocks(self, kernel: Kernel) -> Mapping[str, int] | None:
        """The most threads in a block of each launched function; None if the plan doesn't resolve."""
        blocks: dict[str, int] = {}
        try:
            for shape in self.shapes:
                for launch in self.task.resolved(kernel, shape).launches:
                    blocks[launch.kernel] = max(blocks.get(launch.kernel, 0), launch.threads)
        except LaunchPlanError:
            return None
        return blocks


def _without_directives(source: str) -> str:
    """The text without the plan, macros and pragmas, which say nothing about functions' declarations."""
    return re.sub(
        r"^[ \t]*#.*$", "", re.sub(r"\A\s*/\*.*?\*/", "", source, flags=re.DOTALL), flags=re.MULTILINE
    )


def _bytes(declaration: Declaration, macros: Mapping[str, Number]) -> int:
    sizes = [constant(text_of(extent), macros) if extent else None for extent in declaration.extents]
    known = [size for size in sizes if size is not None]
    if declaration.extern or len(known) < len(sizes):
        return 0
    return TYPE_BYTES.get(declaration.type, 4) * prod(known)


def _largest_block(function: Function, macros: Mapping[str, Number]) -> int:
    bounds = function.launch_bounds
    if bounds is None or not bounds.named_children:
        return 1024
    size = constant(text_of(bounds.named_children[0]), macros)
    return 1024 if size is None else size


def constant(expression: Extent, names: Mapping[str, Number]) -> int | None:
    """The whole number that an expression is with these names; None if it has no such value."""
    try:
        return evaluate_int(expression, names)
    except ExpressionError:
        return None
