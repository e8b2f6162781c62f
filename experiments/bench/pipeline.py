"""Problems read, searched and timed, each in processes of its own.

While some problems are searched others are read; PyTorch's functions follow. Each GPU has one search unless more are
asked for: searches beside each other wait for the GPU's lock, and each takes several times as long to open, to evaluate
a kernel, and to validate its answer. What fails or hangs costs its own problem alone.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.config import SearchConfig
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError, UserError
from mctskernel.experiments.bench.rows import Read, Row, Searched, name_of, read_row, write_row
from mctskernel.experiments.bench.stages import (
    FIRST,
    RUN,
    TASK,
    Progress,
    read_stage,
    search_stage,
)
from mctskernel.problems.pytorch_timing import (
    LIMIT_SECONDS,
    TIMING_SECONDS,
    begin_timing,
    has_operator,
    has_pytorch_reference,
)
from mctskernel.profiling.processes.forked import CallError, ForkedCall, import_first, wait_for
from mctskernel.report.baselines import Baselines

READ, SEARCH, TIME = "read", "search", "time"

READ_SECONDS = 180.0
"""How long reading a problem may take."""

MOST_FAILURES = 3
"""How many searches in a row may fail on a GPU, while there are others, before it is left out."""

MORE_SECONDS = 300.0
"""How long opening a device and a final validation may take."""

COMPILE_SHARE, COMPILE_SECONDS = 3.0, 60.0
"""How many times a search's seconds torch.compile may take for the problem, and for how long in any case."""

TIMINGS = 3
"""For how many problems it compiles on each GPU beside each other."""

CONTEXT_BYTES = 2 << 30
TENSOR_SETS = 5
"""What a problem takes on a GPU: contexts, and its tensors in the search or its validation, in 64-bit floats for the
reference and its noise, and in PyTorch."""

POLL_SECONDS = 0.2
HEARTBEAT_SECONDS = 15.0


@dataclass(frozen=True)
class Plan:
    """How problems are searched: `at_a_time` on each GPU, by UUID with its bytes, or altogether without one.

    `readers` problems are read at a time, as far as `ahead` of the searches; then PyTorch's functions of `timings` are
    compiled and timed. Nothing begins that couldn't end within
    `seconds`. `each_start` has the starts evaluated and the best of them validated, and no search.
    """

    config: SearchConfig
    gpus: tuple[tuple[str, int], ...] = ()
    at_a_time: int = 1
    readers: int = 2
    baselines: bool = True
    each_start: bool = False
    seconds: float = math.inf

    @property
    def searches(self) -> int:
        """How many problems are searched at a time."""
        return self.at_a_time * max(1, len(self.gpus))

    @property
    def timings(self) -> int:
        """How many problems' PyTorch functions are compiled and timed at a time."""
        return TIMINGS * max(1, len(self.gpus))

    @property
    def search_seconds(self) -> float:
        """The budget of a search."""
        return self.config.budget.seconds or math.inf


@dataclass
class _Running:
    call: ForkedCall[Any]
    problem: Path
    stage: str
    deadline: float
    gpu: str = ""
    progress: Progress | None = None


class Pipeline:
    """The problems of a table, and their rows below the folder `out`, which are written after every stage."""

    def __init__(self, problems: Sequence[Path], out: Path, plan: Plan, say: Callable[[str], None]) -> None:
        self._out, self._plan, self._say = out, plan, say
        self.rows = {problem: self._known(problem) for problem in problems}
        self._running: list[_Running] = []
        self._tried: set[tuple[Path, str]] = set()
        self._gpus = dict(plan.gpus)
        self._again: set[tuple[Path, str]] = set()
        self._failed_on: dict[Path, str] = {}
        self._failures_of: Counter[str] = Counter()
        self._began = self._said = time.monotonic()
        self._unwritable = ""
        self._done_before = self._done

    def run(self, stop_requested: Callable[[], bool]) -> None:
        """Do what is missing, until nothing is, or no time is left, or it is requested to stop."""
        import_first(FIRST)
        end = self._began + self._plan.seconds
        try:
            while self._begin_more(end) or self._running:
                if stop_requested() or time.monotonic() > end:
                    return  # journals and rows have everything that has ended
                wait_for([each.call for each in self._running], POLL_SECONDS)
                for each in tuple(self._running):
                    self._look_after(each)
                self._beat()
        finally:
            for each in self._running:
                each.call.close()

    @property
    def _done(self) -> int:
        """How many problems lack nothing that is to come."""
        busy = {each.problem for each in self._running}
        return sum(problem not in busy and not self._missing(problem) for problem in self.rows)

    # Begin

    def _begin_more(self, end: float) -> bool:
        """Begin what there is room for; whether anything began."""
        before = len(self._running)
        stages = Counter(each.stage for each in self._running)
        ahead = [problem for problem in self.rows if self._missing(problem) == SEARCH]
        room = self._plan.searches + self._plan.readers - len(ahead)
        for problem in self._to_begin(READ, min(self._plan.readers, room) - stages[READ]):
            folder, every_start = self._folder(problem), self._plan.each_start
            arguments = (problem, folder, self._plan.config.language, every_start)
            self._begin(problem, READ, READ_SECONDS, read_stage, *arguments)
        left, missing = end - time.monotonic(), Counter(map(self._missing, self.rows))
        reserve = COMPILE_SECONDS * (1 + missing[TIME] / (2 * self._plan.timings))
        is_late = self._plan.baselines and left < min(reserve, self._plan.seconds / 2)
        needed = self._plan.search_seconds if self._plan.search_seconds < math.inf else 0.0
        if needed < left and not is_late:
            for problem in self._to_begin(SEARCH, self._plan.searches - stages[SEARCH]):
                gpu = self._gpu_for(problem)
                if gpu is not None:
                    config = self._configured(problem, gpu)
                    folder = self._folder(problem)
                    limit = self._plan.search_seconds + MORE_SECONDS
                    self._begin(problem, SEARCH, limit, search_stage, folder, config, gpu=gpu)
        # Autotuning uses a GPU for as long as a search does: it waits until no other search is to begin.
        if self._plan.baselines and (is_late or not (missing[READ] or missing[SEARCH] or stages[READ])):
            for problem in self._to_begin(TIME, self._plan.timings - stages[TIME]):
                self._begin_timing(problem)
        return len(self._running) > before

    def _to_begin(self, stage: str, room: int) -> Iterator[Path]:
        """The problems that lack a stage for which everything is there, as many as there is room for."""
        for problem in self.rows:
            if room <= 0:
                return
            if (problem, stage) in self._tried:
                continue
            if self._missing(problem) == stage and (stage != TIME or self._can_time(problem)):
                room -= 1
                yield problem

    def _begin(
        self,
        problem: Path,
        stage: str,
        limit: float,
        function: Callable[..., Any],
        *arguments: object,
        gpu: str = "",
    ) -> None:
        self._tried.add((problem, stage))
        folder = self._folder(problem)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            call = ForkedCall(function, *arguments, log=folder / "log")
        except OSError as error:
            self._fail(problem, stage, f"It could not begin: {error}.")
            return
        self._running.append(_Running(call, problem, stage, time.monotonic() + limit, gpu))

    def _begin_timing(self, problem: Path) -> None:
        """Begin to time PyTorch's functions beside a problem's answer, on the GPU without a search with most room."""
        busy: dict[str, list[_Running]] = {uuid: [] for uuid in self._gpus}
        for each in self._running:
            busy.get(each.gpu, []).append(each)
        room = {
            uuid: self._gpus[uuid]
            - sum(self._bytes(each.problem, 1) for each in here)
            - self._bytes(problem, 1)
            for uuid, here in busy.items()
            if not any(each.stage == SEARCH for each in here)
        }
        gpu = max(room, key=room.__getitem__, default="")
        if not gpu or (room[gpu] < 0 and busy[gpu]):
            return
        self._tried.add((problem, TIME))
        folder = self._folder(problem)
        limit = min(max(COMPILE_SHARE * self._plan.search_seconds, COMPILE_SECONDS), LIMIT_SECONDS)
        try:
            call = begin_timing(folder / TASK, gpu, limit, folder / "log")
        except OSError as error:
            self._fail(problem, TIME, f"It could not begin: {error}.")
            return
        call.send(folder / RUN)
        self._running.append(_Running(call, problem, TIME, time.monotonic() + limit + TIMING_SECONDS, gpu))

    def _configured(self, problem: Path, gpu: str) -> SearchConfig:
        config, read = self._plan.config, self.rows[problem].read
        if gpu:
            config = msgspec.structs.replace(
                config, executor=msgspec.structs.replace(config.executor, gpus=(gpu,))
            )
        if self._plan.each_start and read is not None:
            budget = msgspec.structs.replace(config.budget, evaluations=len(read.starts))
            config = msgspec.structs.replace(config, budget=budget)
        return config

    def _gpu_for(self, problem: Path) -> str | None:
        """The GPU with the fewest searches and memory for one more; empty without GPUs, None where there is no room."""
        busy = [each for each in self._running if each.stage == SEARCH]
        if not self._plan.gpus:
            return ""
        for uuid, size in sorted(
            self._gpus.items(), key=lambda gpu: sum(each.gpu == gpu[0] for each in busy)
        ):
            here = [each for each in busy if each.gpu == uuid]
            if self._failed_on.get(problem) == uuid and (here or len(self._gpus) > 1):
                continue
            needed = self._bytes(problem) + sum(self._bytes(each.problem) for each in here)
            if not here or (len(here) < self._plan.at_a_time and needed < size):
                return uuid
        return None

    def _bytes(self, problem: Path, sets: int = TENSOR_SETS) -> int:
        read = self.rows[problem].read
        return CONTEXT_BYTES + sets * (read.gpu_bytes if read is not None else 0)

    def _can_time(self, problem: Path) -> bool:
        with suppress(UserError):
            task = load_task(self._folder(problem) / TASK)
            if has_pytorch_reference(task) or has_operator(task):
                return True
        self._tried.add((problem, TIME))
        return False

    def _missing(self, problem: Path) -> str:
        """The next stage of a problem; empty where there is none, or where it was tried already."""
        row = self.rows[problem]
        if row.read is None:
            stage = READ
        elif row.read.reason or row.searched is not None:
            stage = TIME if self._plan.baselines and row.is_valid and row.baselines is None else ""
        else:
            stage = SEARCH
        return "" if (problem, stage) in self._tried else stage

    # Look after what runs

    def _look_after(self, running: _Running) -> None:
        is_over = running.call.collect()
        for said in running.call.said:
            running.progress = said if isinstance(said, Progress) else running.progress
        running.call.said.clear()
        if is_over:
            self._end(running)
            self._record(running)
        elif time.monotonic() > running.deadline:
            self._end(running)
            running.call.ended = CallError("It was ended, since it took too long.")
            self._again.add((running.problem, running.stage))  # once is enough
            self._record(running)

    def _end(self, running: _Running) -> None:
        self._running.remove(running)
        running.call.close()

    def _record(self, running: _Running) -> None:
        problem, ended = running.problem, running.call.ended
        match ended:
            case Read():
                self._keep(problem, read=ended)
            case Searched():
                self._failures_of[running.gpu] = 0
                self._keep(problem, searched=ended)
            case Baselines():
                self._keep(problem, baselines=ended)
            case CallError():
                self._fail(problem, running.stage, str(ended))
                if running.gpu and (problem, running.stage) not in self._again:
                    self._again.add((problem, running.stage))
                    self._tried.discard((problem, running.stage))
                if running.gpu and running.stage == SEARCH:
                    self._blame(running, str(ended))
        row = self.rows[problem]
        if running.stage != READ or row.reason:
            self._say(f"{row.problem}: {_outcome(row)}")

    def _blame(self, failed: _Running, reason: str) -> None:
        """Have a problem searched on another GPU, or alone on the only one; leave out one on which nothing succeeds."""
        gpu = failed.gpu
        self._failed_on[failed.problem] = gpu
        self._failures_of[gpu] += 1
        if self._failures_of[gpu] == MOST_FAILURES and len(self._gpus) > 1:
            del self._gpus[gpu]
            self._say(
                f"The GPU {gpu[:8]} is left out, since {MOST_FAILURES} searches in a row failed: {reason}"
            )

    def _fail(self, problem: Path, stage: str, reason: str) -> None:
        failures = {**self.rows[problem].failures, stage: reason}
        self._keep(problem, failures=failures)

    def _keep(self, problem: Path, **fields: Any) -> None:
        """Write what is known of a problem down; in memory alone where the disk refuses."""
        before = self.rows[problem]
        failures = fields.get("failures")
        if failures is None:
            done = {"read": READ, "searched": SEARCH, "baselines": TIME}
            left = {name: text for name, text in before.failures.items() if name not in map(done.get, fields)}
            fields["failures"] = left
        row = self.rows[problem] = msgspec.structs.replace(before, **fields)
        try:
            write_row(row, self._folder(problem))
        except OSError as error:
            if not self._unwritable:
                self._unwritable = f"Rows can't be written, so the table won't go on from here: {error}."
                self._say(self._unwritable)

    def _beat(self) -> None:
        """Say from time to time how far the table is."""
        now = time.monotonic()
        if now - self._said < HEARTBEAT_SECONDS:
            return
        self._said = now
        done, total = self._done, len(self.rows)
        at = [f"{name_of(each.problem)}{_progress(each)}" for each in self._running if each.stage == SEARCH]
        parts = [f"{done} of {total} problems are done"]
        if at:
            parts.append(f"searching {', '.join(at)}")
        if done > self._done_before:
            left = (now - self._began) / (done - self._done_before) * (total - done)
            parts.append(f"about {left:.0f} s left")
        self._say("; ".join(parts) + ".")

    def _folder(self, problem: Path) -> Path:
        return self._out / name_of(problem)

    def _known(self, problem: Path) -> Row:
        with suppress(RunError):
            return read_row(self._folder(problem))
        return Row(name_of(problem))


def _progress(running: _Running) -> str:
    at = running.progress
    return f" ({at.evaluations} evaluations, {at.speedup:.2f}x)" if at is not None else ""


def _outcome(row: Row) -> str:
    """A row in a line."""
    if row.reason:
        return row.reason
    if row.searched is None:
        return "read"
    over = f"{row.baselines.sentence}, " if row.baselines is not None else ""
    failed = f" PyTorch was not timed: {row.failures[TIME]}" if TIME in row.failures else ""
    found = row.searched
    return (
        f"{over}{found.speedup:.2f}x over its fastest start, {1e3 * found.best_seconds:.4g} ms, "
        f"{found.evaluations} evaluations, {found.wall_seconds:.0f} s.{failed}"
    )
