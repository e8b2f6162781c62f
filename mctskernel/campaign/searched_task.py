"""A task of a campaign: its run folder and, while it is open, the search that goes on in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.campaign.allocation import Standing
from mctskernel.campaign.configuration import Campaign, CampaignError, CampaignTask
from mctskernel.campaign.headroom import log_headroom
from mctskernel.campaign.history import History
from mctskernel.core.device import DeviceError, is_remote
from mctskernel.core.executor import Executor
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.executors import judging_kind
from mctskernel.opening import open_search, reopen
from mctskernel.profiling.reward import is_eligible
from mctskernel.proposers import PARAMETERS
from mctskernel.report.view import View
from mctskernel.run import Budget, Configuration, RunFolder, discard_run, open_run, read_manifest
from mctskernel.runner import conclude, new_run, remembered
from mctskernel.search import Ending, Search, Snapshot
from mctskernel.search_settings import run_configuration
from mctskernel.tasks import find_task
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Tree

N = TypeVar("N", int, float)

SAME = (
    "device",
    "task",
    "architecture",
    "proposer",
    "seed",
    "language",
    "policy",
    "reward",
    "memory",
    "llm",
    "mixture",
    "judge",
)
"""Fields of a run's configuration that a campaign which goes on can't change."""


class SearchedTask:
    """The search of one task, closed at first. `ending` is why it can't go on, None while it can.

    `concluded` is the number of evaluations after which the last gate was passed, None before.
    """

    def __init__(self, task: CampaignTask, path: Path) -> None:
        self.task = task
        self.folder = open_run(path)
        self.history = History()
        self.headroom: float | None = None
        self.ending: Ending | None = None
        self.concluded: int | None = None
        self.remarks: tuple[str, ...] = ()
        self.used_at = 0.0
        self._tree = read_tree(self.folder.journal) if self.folder.journal.exists() else Tree()
        self._search: Search | None = None
        self._configuration: Configuration | None = None
        self._opened = ExitStack()

    @property
    def tree(self) -> Tree:
        """Everything that is known."""
        return self._search.tree_search.tree if self._search is not None else self._tree

    @property
    def is_open(self) -> bool:
        """Whether it has an executor."""
        return self._search is not None

    @property
    def in_flight(self) -> int:
        """Evaluations that have begun and not come back."""
        return self._search.in_flight if self._search is not None else 0

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation or a reply comes if one waits for it."""
        return self._search is not None and (self._search.in_flight > 0 or self._search.expects_replies)

    @property
    def capacity(self) -> int:
        """How many evaluations its executor takes."""
        return self._search.executor.capacity if self._search is not None else 0

    @property
    def has_baseline(self) -> bool:
        """Whether the starting kernel has a time that is believed."""
        root = self.tree.nodes[0].evaluation if self.tree.nodes else None
        return root is not None and is_eligible(root)

    @property
    def standing(self) -> Standing:
        """What decides on its next evaluation; its cost is left at 1."""
        return Standing(
            name=self.task.name,
            seconds=self.task.seconds,
            evaluations=max(0, self.history.evaluations - 1),
            improvements=self.history.improvements,
            headroom=self.headroom,
            in_flight=self.in_flight,
        )

    def take_in(self) -> None:
        """Follow the tree by one evaluation."""
        self.history.advance(self.tree)
        if self.history.evaluations == 1:
            self.headroom = log_headroom(View(self.folder, self.tree, None))
            self.ending = None if self.has_baseline else Ending.NO_BASELINE

    def open(
        self,
        campaign: Campaign,
        dollars: float | None,
        follow: Callable[[Snapshot], None],
        stop_requested: Callable[[], bool],
    ) -> None:
        """Open the executor and the search, and begin what was cut off; `dollars` may still be spent.

        Raises what `runner.resume` raises.
        """
        with ExitStack() as stack:
            budget = _budget(self.task, campaign.budget, self.tree.dollars, dollars)
            server = campaign.device if is_remote(campaign.device) else ""
            reopened = reopen(self.folder.path, budget, campaign.workers, campaign.executor, server)
            folder, configuration, executor = stack.enter_context(reopened)
            opening = open_search(folder, configuration, executor, follow, stop_requested)
            self._search, unfinished = stack.enter_context(opening)
            self._configuration = configuration
            self._opened = stack.pop_all()
        self.used_at = time.monotonic()
        self._search.begin(unfinished)

    def submit_next(self) -> bool:
        """Begin one more evaluation; False where none can begin now, or none any more: then `ending` says why."""
        search = self._open_search
        if search.submit_next():
            self.used_at = time.monotonic()
            return True
        self.ending = search.ending
        return False

    def collect(self, timeout: float) -> None:
        """Take in what has come back, waiting up to `timeout` seconds for the first of it."""
        self._open_search.collect(timeout)
        self.used_at = time.monotonic()

    def stop(self, grace: float) -> None:
        """Let evaluations in flight finish for `grace` seconds, and expect nothing else."""
        self._open_search.end(Ending.INTERRUPTED, grace)

    def conclude(self, ending: Ending) -> None:
        """Choose the answer, which passes the last gate. Raises what `runner.conclude` raises."""
        search, configuration = self._open_search, self._configuration
        search.end(ending)
        conclusion = conclude(self.folder, search, ending)
        if configuration is not None:
            conclusion = remembered(conclusion, configuration)
        self.remarks, self.concluded = conclusion.remarks, self.history.evaluations

    def close(self) -> None:
        """Close the executor and the journal; the tree stays."""
        self._tree, self._search = self.tree, None
        self._opened.close()

    @property
    def _open_search(self) -> Search:
        if self._search is None:
            raise ValueError(f"'{self.task.name}' isn't open.")
        return self._search


@dataclass(frozen=True)
class RunPlan:
    """The run of a task: where it is, or is to be made, of which folder and how it is configured."""

    task: CampaignTask
    path: Path
    task_folder: Path
    configuration: Configuration


def plan_runs(campaign: Campaign, folder: Path) -> tuple[RunPlan, ...]:
    """The runs of a campaign, with whatever is wrong with a task; nothing is written.

    Raises CampaignError, TaskError, RunError, DeviceError, PolicyError and ModelError.
    """
    if campaign.device == "recorded" and campaign.budget.seconds is not None:
        raise CampaignError("Recorded spaces are searched by evaluations: leave seconds out of [budget].")
    judging = judging_kind(campaign.device)
    plans = []
    for task in campaign.tasks:
        plan = RunPlan(task, folder / task.name, *_wanted(task, campaign, judging))
        if RunFolder(plan.path).manifest.exists():
            _refuse_other(plan)
        plans.append(plan)
    return tuple(plans)


def make_runs(plans: Sequence[RunPlan]) -> tuple[SearchedTask, ...]:
    """Make the runs that aren't there yet; nothing is evaluated. Raises what `runner.begin` raises."""
    new = [plan for plan in plans if not RunFolder(plan.path).manifest.exists()]
    for plan in new:
        discard_run(RunFolder(plan.path))
    if new:
        with _new_run(new[0]) as (_, executor):
            for plan in new[1:]:
                # What a device is doesn't depend on the task, unless it is a recorded space.
                lent = None if plan.configuration.device == "recorded" else executor
                with _new_run(plan, lent):
                    pass
    return tuple(SearchedTask(plan.task, plan.path) for plan in plans)


def _new_run(
    plan: RunPlan, lent: Executor | None = None
) -> AbstractContextManager[tuple[RunFolder, Executor]]:
    return new_run(plan.path, plan.task_folder, plan.configuration, lent)


def _wanted(task: CampaignTask, campaign: Campaign, judging: str) -> tuple[Path, Configuration]:
    """A task's folder, and what its run is to be."""
    folder = find_task(task.task)
    loaded = load_task(folder, task.settings.language)
    _check_device(loaded, campaign.device)
    settings = msgspec.structs.replace(
        task.settings, workers=1 if campaign.workers is None else campaign.workers
    )
    configuration = run_configuration(
        settings,
        task=loaded.name,
        device=campaign.device,
        architecture=campaign.architecture,
        seed=campaign.seed,
        budget=_budget(task, campaign.budget, 0.0, campaign.budget.dollars),
        executor=campaign.executor,
        judging=judging,
    )
    if loaded.space:
        configuration = msgspec.structs.replace(configuration, proposer=PARAMETERS)
    return folder, msgspec.structs.replace(configuration, language=loaded.starting_kernel.language)


def _check_device(task: Task, device: str) -> None:
    if bool(task.space) != (device == "recorded"):
        raise DeviceError(
            f"{task.name} is {'a recorded space' if task.space else 'a kernel'}, and the campaign's device is "
            f"{device}: recorded spaces are searched on device recorded, and nothing else is."
        )


def _refuse_other(plan: RunPlan) -> None:
    """Raises CampaignError where a run is there already that was searched in another way."""
    known = read_manifest(open_run(plan.path)).configuration
    # A server may have another address now: what it is, its fingerprint says.
    fields = SAME[1:] if is_remote(known.device) and is_remote(plan.configuration.device) else SAME
    for field in fields:
        for name, then, now in _changes(field, getattr(known, field), getattr(plan.configuration, field)):
            raise CampaignError(
                f"[[task]] '{plan.task.name}': {plan.path} was searched with {name} = {then}, not {now}. Give the task "
                "another name, or choose another --out."
            )


def _changes(name: str, then: object, now: object) -> Iterator[tuple[str, object, object]]:
    """What differs, field by field where it is a table: its name, what it was and what it is."""
    if isinstance(then, msgspec.Struct) and isinstance(now, msgspec.Struct):
        for field in msgspec.structs.fields(then):
            yield from _changes(field.name, getattr(then, field.name), getattr(now, field.name))
    elif then != now:
        yield name, then, now


def _budget(task: CampaignTask, budget: Budget, spent: float, dollars: float | None) -> Budget:
    """What a run may spend: all of the campaign's, or what is left of it, within the task's limits."""
    left = None if dollars is None else spent + dollars
    return Budget(
        evaluations=_least(budget.evaluations, task.limits.evaluations),
        seconds=budget.seconds,
        dollars=_least(left, task.limits.dollars),
    )


def _least(first: N | None, second: N | None) -> N | None:
    known = [each for each in (first, second) if each is not None]
    return min(known, default=None)
