"""Several tasks searched in one process under one budget.

A model spends its time in several kernels. By Amdahl's law a kernel that takes `seconds` of it, and gets faster by the
factor exp(g), saves seconds * (1 - exp(-g)). Each next evaluation goes to the task where the model of edits expects to
save the most, for what an evaluation of that task costs. Every task has an ordinary run folder of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from mctskernel.answer import valid_speedup
from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.user_errors import MisuseError
from mctskernel.profiling.reward import is_eligible
from mctskernel.run import Budget, Configuration, RunError, RunFolder, open_run, read_manifest
from mctskernel.runner import SearchResult, finish, new_run, open_search, remembered, reopen
from mctskernel.search import GRACE_SECONDS, POLL_SECONDS, Search, Snapshot, StopReason
from mctskernel.tree.strategies.edit_model import ModelGuided

Follower = Callable[[str, Snapshot], None]
"""Gets the name of a task, and the state of its search after an evaluation."""


class WeightsError(MisuseError, ValueError):
    """A file of weights that can't be used."""


@dataclass(frozen=True)
class Plan:
    """A task to search: its run folder, its task folder, its configuration, and its time in the whole model.

    `weight` is in seconds, or any unit that is the same for all tasks. The run folder may hold an earlier run of the
    task, which is then continued.
    """

    path: Path
    task_folder: Path
    configuration: Configuration
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The task's name."""
        return self.configuration.task


def read_weights(file: Path, names: Sequence[str]) -> Mapping[str, float]:
    """Read the time or share of each task from a TOML file of lines `task = number`. Raises WeightsError."""
    try:
        found = parse_toml(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{file} can't be read: {error}.") from error
    except DocumentError as error:
        raise WeightsError(f"{file} {error}.") from error
    for name, value in found.items():
        if name not in names:
            raise WeightsError(
                f"{file} names '{name}', which is not searched (searched: {', '.join(names)})."
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise WeightsError(f"{file}: '{name}' must be a number above 0, not {value!r}.")
    if missing := [name for name in names if name not in found]:
        raise WeightsError(f"{file} lacks '{missing[0]}': give its seconds or its share.")
    return {name: float(found[name]) for name in names}


def search_all(
    plans: Sequence[Plan], budget: Budget, follow: Follower, stop_requested: Callable[[], bool]
) -> tuple[SearchResult, ...]:
    """Search the tasks until the budget for all of them is spent; earlier sessions in the same folders count.

    The answer of each task has to pass final validation. Raises what `runner.begin` raises, and RunError for a folder
    with a run of another task.
    """
    with ExitStack() as stack:
        tasks = tuple(_opened(plan, stack, follow, stop_requested) for plan in plans)
        stop_reason = _Searches(tasks, budget, stop_requested).run()
        results = []
        for task in tasks:
            stopped = stop_reason
            if stop_reason is not StopReason.INTERRUPTED and not task.has_baseline:
                stopped = StopReason.NO_BASELINE
            task.search.end(stopped, GRACE_SECONDS / len(tasks))
            found = finish(task.folder, task.search, stopped)
            results.append(remembered(found, task.configuration))
        return tuple(results)


def speedup_of_model(plans: Sequence[Plan], results: Sequence[SearchResult]) -> float:
    """The speed-up of the sum of all weights, by the answers."""
    pairs = zip(plans, results, strict=True)
    after = (plan.weight / max(found.answer.speedup, 1.0) for plan, found in pairs)
    return math.fsum(plan.weight for plan in plans) / math.fsum(after)


@dataclass
class _Task:
    plan: Plan
    folder: RunFolder
    configuration: Configuration
    search: Search
    model: ModelGuided

    def expected_saving(self) -> float:
        """The time that one more evaluation is expected to save."""
        tree = self.search.tree_search.tree
        best = max((valid_speedup(node) for node in tree.nodes), default=0.0) or 1.0
        improvement = max((each.improvement for each in self.model.ratings(tree, 1)), default=0.0)
        return self.plan.weight / best * -math.expm1(-improvement)

    @property
    def seconds_per_evaluation(self) -> float:
        """The mean so far."""
        tree = self.search.tree_search.tree
        return tree.evaluation_seconds / max(1, tree.evaluations)

    @property
    def has_baseline(self) -> bool:
        """Whether the starting kernel has a valid time."""
        root = self.search.tree_search.tree.nodes[0].evaluation
        return root is not None and is_eligible(root)

    @property
    def is_waiting(self) -> bool:
        """Whether an evaluation or a reply of a proposer will come back."""
        return self.search.in_flight > 0 or self.search.expects_replies


class _Searches:
    """The loop over all tasks."""

    def __init__(self, tasks: Sequence[_Task], budget: Budget, stop_requested: Callable[[], bool]) -> None:
        self._tasks, self._budget, self._stop_requested = tasks, budget, stop_requested
        self._began = time.monotonic()
        self._spent_seconds = max(task.search.spent_seconds for task in tasks)
        self._most = max(task.search.executor.capacity for task in tasks)

    def run(self) -> StopReason:
        """Evaluate until there is a reason to stop."""
        while True:
            while self._stop_reason() is None and self._in_flight < self._most and self._submit_next():
                pass
            waiting = [task for task in self._tasks if task.is_waiting]
            stop_reason = self._stop_reason()
            if stop_reason is StopReason.INTERRUPTED or not waiting:
                return stop_reason or StopReason.EXHAUSTED
            for task in waiting:
                task.search.collect(POLL_SECONDS / len(waiting))

    @property
    def _in_flight(self) -> int:
        return sum(task.search.in_flight for task in self._tasks)

    def _submit_next(self) -> bool:
        """Begin an evaluation of the task that promises most, among those that have one to begin."""
        candidates = [task for task in self._tasks if task.has_baseline]
        by_seconds = self._budget.seconds is not None
        savings = {
            task.plan.name: task.expected_saving() / (task.seconds_per_evaluation if by_seconds else 1.0)
            for task in candidates
        }
        candidates.sort(key=lambda task: -savings[task.plan.name])
        return any(task.search.submit_next() for task in candidates)

    def _stop_reason(self) -> StopReason | None:
        if self._stop_requested():
            return StopReason.INTERRUPTED
        left = self._budget.left(
            sum(task.search.evaluations for task in self._tasks) + self._in_flight,
            self._spent_seconds + time.monotonic() - self._began,
            math.fsum(task.search.tree_search.tree.dollars for task in self._tasks),
        )
        return StopReason.BUDGET if 0 in (left.evaluations, left.seconds, left.dollars) else None


def _opened(plan: Plan, stack: ExitStack, follow: Follower, stop_requested: Callable[[], bool]) -> _Task:
    """Open the run of a plan, new or continued, and begin what is unfinished, such as the starting kernel."""
    configuration = plan.configuration
    if RunFolder(plan.path).manifest.exists():
        known = read_manifest(open_run(plan.path)).configuration
        if known.task != plan.name:
            raise RunError(
                f"{plan.path} holds a run of {known.task}, not of {plan.name}: choose another --out."
            )
        folder, configuration, executor = stack.enter_context(
            reopen(plan.path, configuration.budget, configuration.workers, configuration.executor)
        )
    else:
        folder, executor = stack.enter_context(new_run(plan.path, plan.task_folder, configuration))
    opening = open_search(folder, configuration, executor, partial(follow, plan.name), stop_requested)
    search, unfinished = stack.enter_context(opening)
    search.begin(unfinished)
    return _Task(plan, folder, configuration, search, ModelGuided())


def shared(configuration: Configuration, tasks: int) -> Configuration:
    """The configuration of one of several tasks, which share workers and money."""
    budget = configuration.budget
    dollars = None if budget.dollars is None else budget.dollars / tasks
    return msgspec.structs.replace(
        configuration,
        workers=max(1, configuration.workers // tasks),
        budget=msgspec.structs.replace(budget, dollars=dollars),
    )
