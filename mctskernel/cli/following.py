"""What commands that search share: progress, Ctrl-C, and the summary at the end."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from mctskernel.cli.errors import BAD_MACHINE, BAD_TASK, INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.quantities import speedup_text
from mctskernel.core.task_file import load_task
from mctskernel.loop import Follower, StopReason
from mctskernel.problems.pytorch_timing import (
    LIMIT_SECONDS,
    TIMING_SECONDS,
    begin_timing,
    has_pytorch_reference,
)
from mctskernel.profiling.processes.forked import ForkedCall, wait_for
from mctskernel.report.baselines import Baselines, read_baselines
from mctskernel.report.live import following
from mctskernel.report.notes import counted
from mctskernel.report.terminal import summary
from mctskernel.report.view import View
from mctskernel.run.search import SearchResult


@contextmanager
def follow_search(console: Console | None = None) -> Iterator[tuple[Follower, Callable[[], bool]]]:
    """What shows progress, and what says whether Ctrl-C was pressed; a second Ctrl-C ends the process."""
    with stopping() as stop_requested, following(console or PlainConsole()) as follow:
        yield follow, stop_requested


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed; a second Ctrl-C ends the process."""
    pressed: list[int] = []

    def press(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(pressed)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


BASELINE_SHARE = 0.1  # the share of a search's --seconds that PyTorch may take once the search is over
HEARTBEAT_SECONDS = 10.0
POLL_SECONDS = 0.1


@contextmanager
def pytorch_timing(
    task: Path, device: str, budget_seconds: float | None, *, wanted: bool = True
) -> Iterator[ForkedCall[Baselines] | None]:
    """Compile a task's PyTorch function within this block, to be timed after its search; None where there is none."""
    if not (wanted and device == "gpu" and has_pytorch_reference(load_task(task))):
        yield None
        return
    share = math.inf if budget_seconds is None else (1 + BASELINE_SHARE) * budget_seconds
    timing = begin_timing(task, "", min(LIMIT_SECONDS, share), Path(os.devnull))
    try:
        yield timing
    finally:
        timing.close()


def time_pytorch(search_result: SearchResult, timing: ForkedCall[Baselines] | None) -> None:
    """Time PyTorch beside the answer of a search that measured it, and say how long; a failure costs only the times."""
    view = View(search_result.folder, search_result.tree, search_result.answer)
    is_measured = view.manifest.fingerprint.get("device") == "gpu" and search_result.answer.node is not None
    if timing is None or not (is_measured and search_result.answer.validated) or view.baselines is not None:
        return
    budget = view.manifest.configuration.budget.seconds
    echo("Timing PyTorch, eager and compiled, beside the start and the best; Ctrl-C leaves it out.")
    limit = TIMING_SECONDS + (
        LIMIT_SECONDS if budget is None else min(LIMIT_SECONDS, BASELINE_SHARE * budget)
    )
    began, beats = time.monotonic(), 0
    try:
        timing.send(view.folder.path)
        while not timing.collect():
            wait_for([timing], POLL_SECONDS)
            seconds = time.monotonic() - began
            if seconds > limit:
                echo(f"mctskernel: PyTorch was not timed: it was not done after {limit:.0f} s.", err=True)
                return
            if seconds >= (beats + 1) * HEARTBEAT_SECONDS:
                beats += 1
                echo(
                    f"PyTorch is being timed: {seconds:.0f} s. {timing.said[-1] if timing.said else ''}".rstrip()
                )
    except KeyboardInterrupt:
        echo("mctskernel: PyTorch was not timed.", err=True)
        return
    if isinstance(timing.ended, Baselines):
        echo(f"That took {time.monotonic() - began:.0f} s. {timing.ended.problem}".rstrip())
    else:
        echo(f"mctskernel: PyTorch was not timed: {timing.ended}", err=True)


def print_outcome(search_result: SearchResult) -> None:
    """Print how the search ended, the best path, and what to do next; exits with 130, 5 or 3 where it must."""
    refuse_without_baseline(search_result)
    echo(f"Stopped: {search_result.stop_reason}. {search_result.advice}".rstrip())
    path = search_result.folder.path
    for note in search_result.notes:
        echo(f"mctskernel: {note}", err=True)
    is_waiting = search_result.stop_reason is StopReason.WAITING
    view = View(search_result.folder, search_result.tree, None if is_waiting else search_result.answer)
    PlainConsole().print(summary(view))
    echo(f"The path with its evidence: mctskernel show {path}")
    echo(f"The kernel:                 mctskernel best {path}")
    if search_result.stop_reason is StopReason.INTERRUPTED:
        echo(f"To continue:                mctskernel resume {path}")
        sys.exit(INTERRUPTED)
    if is_waiting:
        echo(f"To get nodes to edit:       mctskernel ask {path}")
        return
    more = "" if search_result.stop_reason is StopReason.PATIENCE else " --budget N"
    echo(f"To search further:          mctskernel resume {path}{more}")
    if search_result.stop_reason is StopReason.SILENCE:
        sys.exit(BAD_MACHINE)


def print_result(task: str, search_result: SearchResult) -> None:
    """Print one line about a task that was searched beside others."""
    evaluations, path = search_result.tree.evaluations, search_result.folder.path
    if search_result.stop_reason is StopReason.NO_BASELINE:
        echo(f"{task}: {search_result.problem}", err=True)
        return
    for warning in search_result.notes:
        echo(f"{task}: {warning}", err=True)
    view = View(search_result.folder, search_result.tree, search_result.answer)
    speedup = speedup_text(max(search_result.answer.speedup, 1.0), view.numbers)
    pytorch = read_baselines(path)
    over = f", {pytorch.sentence}" if pytorch is not None else ""
    echo(f"{task}: {speedup}{over} after {counted(evaluations, 'evaluation')}; mctskernel show {path}")


def refuse_without_baseline(search_result: SearchResult) -> None:
    """Exit with 3 and the reason when the starting kernel has no valid time."""
    if search_result.stop_reason is StopReason.NO_BASELINE:
        echo(f"mctskernel: {search_result.problem}", err=True)
        sys.exit(BAD_TASK)
