"""A run that meets one fault after another, is gone on with after each, and is looked through at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mctskernel.experiments.fault_injection.checks import evaluated, lost, problems, whole_lines
from mctskernel.experiments.fault_injection.kinds import LIMIT_SECONDS, Course, Kind, Meeting, MissedError
from mctskernel.experiments.fault_injection.subjects import (
    ENDLESS,
    START_SECONDS,
    ModelServer,
    Place,
    Running,
    Starter,
    Subject,
    hurry_model,
    start,
    wait_until,
)

EARLY = 0.15
"""How often a fault comes while a search still starts."""

ENDS_WITHIN = 3
"""Evaluations more, after which the last search of a run ends by itself."""

NEVER_BEGAN = "never began"

BY_SIGNAL = {-2, -9, -15, 130, 143, 1}
"""Statuses of a search that was interrupted."""

SENTENCE = {0, 4, 5}
"""Statuses of a search that ended with a sentence: `the budget is spent`, a run or a machine that can't be used."""


@dataclass(frozen=True)
class Injected:
    """A fault and what became of it.

    `pause_seconds` is the longest time in which nothing happened, `lost` how many finished evaluations weren't there
    afterwards; `problem` says what else was wrong. `resumed` is None where there was nothing to go on with.
    """

    kind: str
    subject: str
    ending: str
    pause_seconds: float
    lost: int = 0
    resumed: bool | None = None
    problem: str = ""

    @property
    def began(self) -> bool:
        """Whether there was a search that the fault could meet."""
        return self.ending != NEVER_BEGAN

    @property
    def hung(self) -> bool:
        """Whether nothing happened for longer than may be."""
        return self.pause_seconds > LIMIT_SECONDS


@dataclass
class Trial:
    """One run of one subject in one place."""

    subject: Subject
    place: Place
    starter: Starter
    random: np.random.Generator
    folder: str = "run"
    server: ModelServer = field(default_factory=ModelServer)
    found: list[Injected] = field(default_factory=list)
    reported: dict[int, float] = field(default_factory=dict)
    running: Running | None = None
    _last_words: str = ""
    _inode: int = 0
    _offset: int = 0
    _evaluations: int = 0

    @property
    def run(self) -> Path:
        """The run, as the harness sees it."""
        return self.place.seen / self.folder

    @property
    def journal(self) -> Path:
        """Its journal."""
        return self.run / "journal.jsonl"

    def faults(self, kinds: Sequence[Kind], heard: Callable[[Injected], None]) -> list[Injected]:
        """Inject one fault after another, then let the run end and look through it."""
        for kind in kinds:
            met = self._meet(kind)
            if met is not None:
                self.found.append(met)
                heard(met)
        self._finish()
        return self.found

    def _start(self, more: int = ENDLESS) -> Running:
        run, budget = self.place.path / self.folder, len(evaluated(whole_lines(self.journal))) + more
        begun = (self.run / "run.json").exists() or (not self.subject.makes_folder and self.run.exists())
        if not self.subject.makes_folder:
            self.run.mkdir(exist_ok=True)
        if not begun:
            self.reported = {}
        words = (self.subject.again if begun else self.subject.words)(run, budget)
        return start(self.starter, words, self.subject.variables)

    def _meet(self, kind: Kind) -> Injected | None:
        if self.server.url and not (self.run / "run.json").exists():
            self._prepare_model()
        known = evaluated(whole_lines(self.journal)) | self.reported
        if self.running is None or self.running.ended():
            self.running = self._start()
        moved = self._wait_for_progress(self.running, len(known))
        if self.found and self.found[-1].resumed is None and known:
            self.found[-1] = replace(self.found[-1], resumed=moved)
        if not moved:
            self._end()
            problem = f"The search before the fault didn't go on: {self._last_words[-600:]}"
            self.folder, self.reported = f"run-{len(self.found) + 2}", {}
            return Injected(kind.name, self.subject.name, NEVER_BEGAN, 0.0, problem=problem)
        meeting = Meeting(
            self.place,
            self.run,
            self.running,
            self.random,
            known,
            self._start,
            self.server,
            Path(self.subject.variables.get("CUDA_FAULT", "/nonexistent")),
            Path(self.subject.variables.get("CLOCK_JUMP", "/nonexistent")),
        )
        time.sleep(float(self.random.uniform(0.0, self.subject.span)))
        try:
            return self._injected(kind, meeting)
        except MissedError:
            self._end()
            return None

    def _end(self) -> None:
        """End the search, however it is."""
        if self.running is not None:
            self.running.kill()
            self._last_words = self.running.words()
            self.running = None

    def _wait_for_progress(self, running: Running, known: int) -> bool:
        if self.random.random() < EARLY and known and self.found and self.found[-1].resumed:
            time.sleep(float(self.random.uniform(0.0, 1.5)))
            return True
        wait_until(lambda: self._count() > known or running.ended(), START_SECONDS)
        return self._count() > known

    def _count(self) -> int:
        """The evaluations in the journal; reads what is new."""
        with suppress(OSError), self.journal.open("rb") as file:
            inode, size = os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_size
            if inode != self._inode or size < self._offset:
                self._inode, self._offset, self._evaluations = inode, 0, 0
            file.seek(self._offset)
            new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._evaluations += whole.count(b'"event":"evaluated"')
        return self._evaluations if self.journal.exists() else 0

    def _injected(self, kind: Kind, meeting: Meeting) -> Injected:
        meeting.known |= evaluated(whole_lines(self.journal)) | meeting.running.reported
        began = time.monotonic()
        problem = ""
        try:
            undo = kind.inject(meeting)
        except AssertionError as error:
            return Injected(kind.name, self.subject.name, "", time.monotonic() - began, problem=str(error))
        if meeting.running is not self.running:
            # Started again by the fault itself: how long that takes is the machine's affair, as at every start.
            count = self._count()
            wait_until(lambda: self._count() > count or meeting.running.ended(), START_SECONDS)
            began = time.monotonic()
        pause = self._course(kind, meeting, began)
        running = self.running = meeting.running
        reported = running.reported if kind.course is not Course.EITHER else {}
        ended, status, words = running.ended(), running.process.returncode, ""
        if ended or pause > LIMIT_SECONDS or kind.course is Course.WHATEVER:
            self._end()
            words = self._last_words
        if pause <= LIMIT_SECONDS:
            problem = _wrong_course(kind, status, words)
        try:
            undo()
        except (AssertionError, OSError) as error:
            problem = str(error)
        self.reported = {} if meeting.is_gone else meeting.known | reported
        missing = lost(self.reported, self.journal)
        ending = f"status {status}" if ended else "went on"
        return Injected(
            kind.name,
            self.subject.name,
            ending,
            round(pause, 2),
            missing,
            True if self.running else None,
            problem,
        )

    def _course(self, kind: Kind, meeting: Meeting, began: float) -> float:
        """Follow the search until it has ended or gone on; the longest pause in seconds."""
        running, count, last, longest = meeting.running, self._count(), began, 0.0
        may_go_on = kind.course in (Course.GOES_ON, Course.EITHER, Course.WHATEVER)
        further = 0
        while not running.ended():
            now = time.monotonic()
            if (size := self._count()) > count:
                further, count, longest, last = further + size - count, size, max(longest, now - last), now
                if may_go_on and further >= _enough(kind):
                    return longest
            if now - last > LIMIT_SECONDS:
                return now - last
            time.sleep(0.02)
        return max(longest, time.monotonic() - last)

    def _prepare_model(self) -> None:
        running = self._start(1)
        wait_until(running.ended, START_SECONDS)
        running.kill()
        hurry_model(self.run)

    def _finish(self) -> None:
        """Let the run end by itself, and look through it."""
        if not self.found or not self.journal.exists():
            return
        self._end()
        known = self._count()
        self.running = self._start(ENDS_WITHIN)
        ended = wait_until(self.running.ended, START_SECONDS)
        status = self.running.process.returncode
        self._end()
        last, problem = self.found[-1], ""
        if not ended or status != 0:
            problem = f"The run can't be finished: {self._last_words[-600:]}"
        problem = problem or " ".join(problems(self.run))
        went_on = self._count() > known
        self.found[-1] = replace(
            last,
            resumed=went_on and not problem,
            lost=max(last.lost, lost(self.reported, self.journal)),
            problem=" ".join(text for text in (last.problem, problem) if text),
        )


def _enough(kind: Kind) -> int:
    """Evaluations after which a search has gone on: those in flight when the fault came don't count."""
    return 4 if kind.course is Course.GOES_ON else 20


def _wrong_course(kind: Kind, status: int | None, words: str) -> str:
    """What is wrong with how a search took a fault: its status, None for one that goes on, and what it said."""
    said = "mctskernel: " in words and "Traceback" not in words
    fine = {
        Course.DIES: status is not None,
        Course.STOPS: status in BY_SIGNAL,
        Course.SAYS: status in SENTENCE and said,
        Course.GOES_ON: status is None,
        Course.WHATEVER: True,
        Course.EITHER: status in {None, 0} or (status in SENTENCE and said),
    }
    return "" if fine[kind.course] else f"It ended with status {status}: {words[-900:]}"
