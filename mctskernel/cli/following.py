"""What commands that search share: progress, Ctrl-C, and the summary at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from mctskernel.cli.errors import BAD_TASK, INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.task import Task
from mctskernel.core.user_errors import UserError
from mctskernel.loop import Follower, StopReason
from mctskernel.problems.pytorch_timing import (
    LIMIT_SECONDS,
    PytorchTimer,
    has_pytorch_reference,
    time_baselines,
)
from mctskernel.profiling.quantities import speedup_text
from mctskernel.report.baselines import read_baselines
from mctskernel.report.live import following
from mctskernel.report.notes import counted
from mctskernel.report.terminal import save_trajectory, summary
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


BASELINE_SHARE = 0.25
"""The share of a search's --seconds that timing PyTorch may take at its end."""


@contextmanager
def pytorch_timer(
    device: str, tasks: Iterable[Task], *, wanted: bool = True
) -> Iterator[PytorchTimer | None]:
    """What times PyTorch at the end of searches, opened while they run; None where there is nothing to time."""
    if not (wanted and device == "gpu" and any(map(has_pytorch_reference, tasks))):
        yield None
        return
    with PytorchTimer() as timer:
        yield timer


def time_pytorch(search_result: SearchResult, timer: PytorchTimer | None) -> None:
    """Time PyTorch beside the answer of a search that measured it, if the task's reference is PyTorch's; says how long.

    A failure or Ctrl-C costs no more than these times.
    """
    view = View(search_result.folder, search_result.tree, search_result.answer)
    is_measured = view.manifest.fingerprint.get("device") == "gpu" and search_result.answer.node is not None
    if timer is None or not (is_measured and search_result.answer.validated) or view.baselines is not None:
        return
    if not has_pytorch_reference(view.folder.load_task()):
        return
    budget = view.manifest.configuration.budget.seconds
    limit = LIMIT_SECONDS if budget is None else min(LIMIT_SECONDS, BASELINE_SHARE * budget)
    echo(
        f"Timing PyTorch, eager and compiled with autotuning, beside the start and the best, for {limit:.0f} s at "
        "most; Ctrl-C leaves it out."
    )
    try:
        found = time_baselines(view, echo, timer, limit)
    except (UserError, KeyboardInterrupt) as error:
        echo(f"mctskernel: PyTorch was not timed{f': {error}' if str(error) else '.'}", err=True)
        return
    echo(f"That took {found.spent_seconds:.0f} s. {found.problem}".rstrip())
    if found.compiled_seconds is None:
        echo(f"With more time: mctskernel scores {view.folder.path} --time-pytorch")


def print_outcome(search_result: SearchResult) -> None:
    """Print how the search ended; exits with 130 after Ctrl-C and 3 when nothing could be searched."""
    refuse_without_baseline(search_result)
    echo(f"Stopped: {search_result.stop_reason}. {search_result.advice}".rstrip())
    print_story(search_result)


def print_result(task: str, search_result: SearchResult) -> None:
    """Print one line about a task that was searched beside others."""
    evaluations, path = search_result.tree.evaluations, search_result.folder.path
    if search_result.stop_reason is StopReason.NO_BASELINE:
        echo(f"{task}: {search_result.problem}", err=True)
        return
    for warning in search_result.notes:
        echo(f"{task}: {warning}", err=True)
    view = View(search_result.folder, search_result.tree, search_result.answer)
    save_trajectory(view)
    speedup = speedup_text(max(search_result.answer.speedup, 1.0), view.numbers)
    pytorch = read_baselines(path)
    over = f", {pytorch.sentence}" if pytorch is not None else ""
    echo(f"{task}: {speedup}{over} after {counted(evaluations, 'evaluation')}; mctskernel show {path}")


def refuse_without_baseline(search_result: SearchResult) -> None:
    """Exit with 3 and the reason when the starting kernel has no valid time."""
    if search_result.stop_reason is StopReason.NO_BASELINE:
        echo(f"mctskernel: {search_result.problem}", err=True)
        sys.exit(BAD_TASK)


def print_story(search_result: SearchResult) -> None:
    """Print the best path, what the machine lacked, and what to do next; exits with 130 after Ctrl-C."""
    path = search_result.folder.path
    for note in search_result.notes:
        echo(f"mctskernel: {note}", err=True)
    is_waiting = search_result.stop_reason is StopReason.WAITING
    view = View(search_result.folder, search_result.tree, None if is_waiting else search_result.answer)
    save_trajectory(view)
    PlainConsole().print(summary(view))
    echo(f"The path with its evidence: mctskernel show {path}")
    echo(f"The kernel:                 mctskernel best {path}")
    if search_result.stop_reason is StopReason.INTERRUPTED:
        echo(f"To go on:                   mctskernel resume {path}")
        sys.exit(INTERRUPTED)
    if is_waiting:
        echo(f"To get nodes to edit:       mctskernel ask {path}")
        return
    more = "" if search_result.stop_reason is StopReason.PATIENCE else " --budget N"
    echo(f"To search further:          mctskernel resume {path}{more}")
