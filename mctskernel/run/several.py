"""Several tasks searched in one process under one budget, each in an ordinary run folder of its own."""

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
from mctskernel.config import SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.documents import DocumentError, read_toml
from mctskernel.core.user_errors import MisuseError, RunError
from mctskernel.loop import GRACE_SECONDS, POLL_SECONDS, Search, Snapshot, StopReason
from mctskernel.run import RunFolder, open_run, read_manifest
from mctskernel.run.search import SearchResult, finish, new_run, open_search, reopen
from mctskernel.tree.strategies.mcts import Mcts, MctsOptions


@dataclass(frozen=True)
class Plan:
    """A task to search: its run folder, its task folder, its configuration, and its time in the whole model.

    `weight` is in seconds, or any unit that is the same for all tasks. The run folder may hold an earlier run of the
    task, which is then continued.
    """

    path: Path
    task_folder: Path
    configuration: SearchConfig
    weight: float = 1.0


def read_weights(file: Path, names: Sequence[str]) -> Mapping[str, float]:
    """Read the time or share of each task from a TOML file of lines `task = number`. Raises MisuseError."""
    try:
        document = read_toml(file)
    except DocumentError as error:
        raise MisuseError(f"{file} {error}.") from error
    for name, value in document.items():
        if name not in names:
            raise MisuseError(f"{file} names '{name}', which is not searched (searched: {', '.join(names)}).")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise MisuseError(f"{file}: '{name}' must be a number above 0, not {value!r}.")
    if missing := [name for name in names if name not in document]:
        raise MisuseError(f"{file} lacks '{missing[0]}': give its seconds or its share.")
    return {name: float(document[name]) for name in names}


def search_all(
    plans: Sequence[Plan],
    budget: Budget,
    follow: Callable[[str, Snapshot], None],
    stop_requested: Callable[[], bool],
) -> tuple[SearchResult, ...]:
    """Search the tasks until the budget for all of them is spent; earlier sessions in the same folders count.

    `follow` gets the name of a task with the state of its search. The answer of each task has to pass final validation.
    Raises what `run.begin` raises, and RunError for a folder with a run of another task.
    """
    with ExitStack() as stack:
        opened = [_opened(plan, stack, follow, stop_requested) for plan in plans]
        weighted = [(search, plan.weight) for (_, search), plan in zip(opened, plans, strict=True)]
        stop_reason = search_together(weighted, budget, stop_requested)
        results: list[SearchResult] = []
        for folder, search in opened:
            stopped = stop_reason
            if stop_reason is StopReason.EXHAUSTED or (
                stop_reason is not StopReason.INTERRUPTED and not search.has_baseline
            ):
                stopped = search.stop_reason or stop_reason
            stopped = search.end(stopped, GRACE_SECONDS / len(opened))
            cut_short = any(not result.answer.validated for result in results)
            results.append(finish(folder, search, stopped, validate=not cut_short))
        return tuple(results)


def search_together(
    searches: Sequence[tuple[Search, float]], budget: Budget, stop_requested: Callable[[], bool]
) -> StopReason:
    """Run searches that have begun under one budget, each with the time of its task in a whole model.

    By Amdahl's law a kernel that takes `seconds` of the model, and gets faster by the factor exp(g), saves
    seconds * (1 - exp(-g)). Each next evaluation goes where the model of edits expects to save the most, for what an
    evaluation costs there. The searches are still to be ended.
    """
    models = [Mcts(MctsOptions()) for _ in searches]
    capacity = max(search.executor.capacity for search, _ in searches)
    began, spent = time.monotonic(), max(search.spent_seconds for search, _ in searches)

    def stop_reason() -> StopReason | None:
        if stop_requested():
            return StopReason.INTERRUPTED
        left = budget.left(
            sum(search.evaluations + search.in_flight for search, _ in searches),
            spent + time.monotonic() - began + sum(search.validation_seconds for search, _ in searches),
            math.fsum(search.tree_search.tree.dollars for search, _ in searches),
        )
        return StopReason.BUDGET if 0 in (left.evaluations, left.seconds, left.dollars) else None

    def expected_saving(number: int) -> float:
        search, seconds = searches[number]
        tree = search.tree_search.tree
        best = max((valid_speedup(node) for node in tree.nodes), default=0.0) or 1.0
        improvement = models[number].greatest_improvement(tree)
        cost = tree.evaluation_seconds / max(1, tree.evaluations) if budget.seconds is not None else 1.0
        return seconds / best * -math.expm1(-improvement) / cost

    def submit_next() -> bool:
        numbers = [number for number, (search, _) in enumerate(searches) if search.has_baseline]
        numbers.sort(key=expected_saving, reverse=True)
        return any(searches[number][0].submit_next() for number in numbers)

    def in_flight() -> int:
        return sum(search.in_flight for search, _ in searches)

    while True:
        while stop_reason() is None and in_flight() < capacity and submit_next():
            pass
        waiting = [search for search, _ in searches if search.in_flight or search.expects_replies]
        stopped = stop_reason()
        if stopped is StopReason.INTERRUPTED or not waiting:
            return stopped or StopReason.EXHAUSTED
        for search in waiting:
            search.collect(POLL_SECONDS / len(waiting))


def speedup_of_model(plans: Sequence[Plan], results: Sequence[SearchResult]) -> float:
    """The speed-up of the sum of all weights, by the answers."""
    pairs = zip(plans, results, strict=True)
    after = (plan.weight / max(found.answer.speedup, 1.0) for plan, found in pairs)
    return math.fsum(plan.weight for plan in plans) / math.fsum(after)


def shared(configuration: SearchConfig, tasks: int) -> SearchConfig:
    """The configuration of one of several tasks, which share workers and money."""
    budget = configuration.budget
    dollars = None if budget.dollars is None else budget.dollars / tasks
    return msgspec.structs.replace(
        configuration,
        workers=max(1, configuration.workers // tasks),
        budget=msgspec.structs.replace(budget, dollars=dollars),
    )


def _opened(
    plan: Plan, stack: ExitStack, follow: Callable[[str, Snapshot], None], stop_requested: Callable[[], bool]
) -> tuple[RunFolder, Search]:
    """Open the run of a plan, new or continued, and begin what is unfinished, such as the starting kernel."""
    configuration, name = plan.configuration, plan.configuration.task
    if RunFolder(plan.path).manifest.exists():
        known = read_manifest(open_run(plan.path)).configuration
        if known.task != name:
            raise RunError(f"{plan.path} holds a run of {known.task}, not of {name}: choose another --out.")
        folder, configuration, executor = stack.enter_context(
            reopen(plan.path, configuration.budget, configuration.workers, configuration.executor)
        )
    else:
        folder, executor = stack.enter_context(new_run(plan.path, plan.task_folder, configuration))
    opening = open_search(folder, configuration, executor, partial(follow, name), stop_requested)
    search, unfinished = stack.enter_context(opening)
    search.begin(unfinished)
    return folder, search
