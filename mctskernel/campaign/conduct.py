"""The loop of a campaign: several searches take turns at one machine, under one budget.

Nothing drains between tasks: as many evaluations are in flight as the machine takes, whichever searches they are of.
What a campaign knows is what its runs' journals say and, of the seconds that earlier processes spent, campaign.json.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mctskernel.campaign.allocation import ranked
from mctskernel.campaign.configuration import Campaign, CampaignError
from mctskernel.campaign.costs import evaluation_cost
from mctskernel.campaign.report import FILE, Report, read_report, write_report
from mctskernel.campaign.searched_task import SearchedTask, make_runs, plan_runs
from mctskernel.campaign.survey import model_seconds, survey
from mctskernel.run import Budget
from mctskernel.search import GRACE_SECONDS, POLL_SECONDS, Ending, Snapshot
from mctskernel.tree.events import Evaluated
from mctskernel.tree.journal import read_events

RUNS = "runs"

IDLE_SECONDS = 60.0
"""After so long without an evaluation a task's executor is closed: its processes hold memory, its journal a file."""

MOST_OPEN = 8
"""Executors that stay open beside each other; the one that was idle for longest makes room."""

SAVING_SECONDS = 5.0
"""Between two times that campaign.json is written; a process that is killed forgets so many seconds at the most."""


@dataclass(frozen=True)
class Moment:
    """A campaign just after an evaluation of `task`, or a remark of its search's.

    `before` and `now` are the model's time, as the campaign counts it.
    """

    task: str
    snapshot: Snapshot
    budget: Budget
    evaluations: int
    seconds: float
    dollars: float
    before: float
    now: float

    @property
    def spent_fraction(self) -> float:
        """How much of the budget is spent, from 0 to 1, by whichever limit is nearest."""
        return self.budget.spent_fraction(self.evaluations, self.seconds, self.dollars)


Follower = Callable[[Moment], None]


def conduct(
    campaign: Campaign, out: Path, follow: Follower, stop_requested: Callable[[], bool]
) -> tuple[Report, tuple[str, ...]]:
    """Search a campaign's tasks until its budget is spent, or go on with what is in the folder; report what it came to.

    The sentences beside the report are what the user should know of the machine. Raises CampaignError, and what
    `runner.begin` raises: before anything is evaluated, if it is about a task.
    """
    earlier = _open_folder(out)
    plans = plan_runs(campaign, out / RUNS)
    if earlier is None:
        # From then on the folder is the campaign's, whatever cuts it off.
        write_report(out, survey(campaign, ()))
    searched = make_runs(plans)
    concluded = {row.name: row.concluded for row in earlier.tasks} if earlier else {}
    for each in searched:
        each.concluded = concluded.get(each.task.name)
    conductor = _Conductor(
        campaign=campaign,
        out=out,
        searched=searched,
        follow=follow,
        stop_requested=stop_requested,
        spent_seconds=earlier.seconds if earlier else 0.0,
    )
    ending = None
    try:
        ending = conductor.run()
    finally:
        conductor.close()
        report = conductor.save(ending)
    return report, tuple(dict.fromkeys(remark for each in searched for remark in each.remarks))


@dataclass
class _Conductor:
    campaign: Campaign
    out: Path
    searched: tuple[SearchedTask, ...]
    follow: Follower
    stop_requested: Callable[[], bool]
    spent_seconds: float
    _began: float = field(default_factory=time.monotonic)
    _saved_at: float = field(default_factory=time.monotonic)
    _trace: list[int] = field(default_factory=list)
    _times: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for place in _order(self.searched):
            self._take_in(place)

    def run(self) -> Ending:
        """Search until there is a reason to stop, and pass what was found through the last gate."""
        for each in self.searched:
            if each.tree.pending:
                self._open(each)
        while (ending := self._ending()) is not Ending.INTERRUPTED:
            if ending is None:
                self._fill()
            busy = [each for each in self.searched if each.in_flight or (each.is_busy and not ending)]
            if not busy:
                break
            self._collect(busy)
            self._close_idle()
            if time.monotonic() - self._saved_at >= SAVING_SECONDS:
                self.save(None)
        if ending is Ending.INTERRUPTED:
            self._stop()
            return ending
        ending = ending or self._ending() or Ending.EXHAUSTED
        return self._conclude(ending)

    def save(self, ending: Ending | None) -> Report:
        """Write campaign.json; `ending` is None of a campaign that goes on. Raises CampaignError."""
        report = survey(
            self.campaign,
            self.searched,
            ending=ending,
            seconds=self._seconds,
            trace=self._trace,
            times=self._times,
        )
        write_report(self.out, report)
        self._saved_at = time.monotonic()
        return report

    def close(self) -> None:
        """Close what is open."""
        for each in self.searched:
            each.close()

    @property
    def _seconds(self) -> float:
        return self.spent_seconds + time.monotonic() - self._began

    @property
    def _dollars(self) -> float:
        return sum(each.tree.dollars for each in self.searched)

    @property
    def _evaluations(self) -> int:
        return len(self._trace)

    @property
    def _in_flight(self) -> int:
        return sum(each.in_flight for each in self.searched)

    @property
    def _left(self) -> Budget:
        return self.campaign.budget.left(self._evaluations + self._in_flight, self._seconds, self._dollars)

    def _ending(self) -> Ending | None:
        if self.stop_requested():
            return Ending.INTERRUPTED
        left = self._left
        return Ending.BUDGET if 0 in (left.evaluations, left.seconds, left.dollars) else None

    def _fill(self) -> None:
        """Begin evaluations, each where it promises most, until the machine has enough to do."""
        while self._in_flight < max(each.capacity for each in self.searched) or not self._in_flight:
            if self._ending() is not None or not any(map(self._submit, self._candidates())):
                return

    def _candidates(self) -> Iterator[SearchedTask]:
        """Tasks that may have the next evaluation, the best first: every starting kernel before any other kernel."""
        fresh = [each for each in self.searched if not (each.tree.nodes or each.ending)]
        yield from sorted(fresh, key=lambda each: (-each.task.seconds, each.task.name))
        known = [each for each in self.searched if each.has_baseline and each.ending is None]
        left = self._left
        standings = (replace(each.standing, cost=evaluation_cost(each.tree, left)) for each in known)
        by_name = {each.task.name: each for each in known}
        yield from (by_name[name] for name in ranked(standings))

    def _submit(self, searched: SearchedTask) -> bool:
        """Begin an evaluation of a task, if it has one to begin."""
        if not searched.is_open:
            begins = not searched.tree.nodes
            self._open(searched)
            if begins:
                return True
        return searched.submit_next()

    def _open(self, searched: SearchedTask) -> None:
        follow = partial(self._came_back, self.searched.index(searched))
        searched.open(self.campaign, self._left.dollars, follow, self.stop_requested)

    def _collect(self, busy: list[SearchedTask]) -> None:
        """Take in what has come back, or wait a little for it."""
        before = self._evaluations
        for each in busy:
            each.collect(0.0)
        for each in busy:
            if self._evaluations > before or not each.is_busy:
                break
            each.collect(POLL_SECONDS / len(busy))

    def _came_back(self, place: int, snapshot: Snapshot) -> None:
        if not snapshot.remark:
            self._take_in(place)
        moment = Moment(
            task=self.searched[place].task.name,
            snapshot=snapshot,
            budget=self.campaign.budget,
            evaluations=self._evaluations,
            seconds=self._seconds,
            dollars=self._dollars,
            before=self.campaign.model_seconds,
            now=model_seconds(self.campaign, self.searched),
        )
        self.follow(moment)

    def _take_in(self, place: int) -> None:
        self.searched[place].take_in()
        self._trace.append(place)
        now = model_seconds(self.campaign, self.searched)
        if not self._times or self._times[-1][1] != now:
            self._times.append((len(self._trace), now))

    def _close_idle(self) -> None:
        idle = [each for each in self.searched if each.is_open and not each.is_busy]
        idle.sort(key=lambda each: each.used_at)
        excess = sum(each.is_open for each in self.searched) - MOST_OPEN
        now = time.monotonic()
        for number, each in enumerate(idle):
            if number < excess or now - each.used_at >= IDLE_SECONDS:
                each.close()

    def _stop(self) -> None:
        """Evaluations in flight may still come back, all of them within the same grace."""
        until = time.monotonic() + GRACE_SECONDS
        for each in self.searched:
            if each.is_open:
                each.stop(max(0.0, until - time.monotonic()))

    def _conclude(self, ending: Ending) -> Ending:
        """Choose the answers that weren't chosen yet, by the last gate; Ctrl-C leaves the rest for next time."""
        for each in self.searched:
            if self.stop_requested():
                return Ending.INTERRUPTED
            if each.has_baseline and each.concluded != each.history.evaluations:
                if not each.is_open:
                    self._open(each)
                each.conclude(each.ending or ending)
                each.close()
                self.save(None)
        return ending


def _open_folder(out: Path) -> Report | None:
    """What a campaign's folder says, None for a new one. Raises CampaignError for what is no campaign's."""
    if (out / FILE).exists():
        return read_report(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CampaignError(f"{out} already holds something that is no campaign: choose another --out.")
    return None


def _order(searched: Iterable[SearchedTask]) -> Iterator[int]:
    """Whose evaluations came one after the other, by the clocks of the runs' journals."""

    def moments(place: int, each: SearchedTask) -> Iterator[tuple[float, int]]:
        if each.folder.journal.exists():
            events = read_events(each.folder.journal)
            yield from ((event.at, place) for event in events if isinstance(event, Evaluated))

    streams = [moments(place, each) for place, each in enumerate(searched)]
    return (place for _, place in heapq.merge(*streams))
