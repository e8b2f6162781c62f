"""What `search`, `resume` and `measure` share: progress, Ctrl-C, and the story at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from mctskernel.cli.errors import BAD_TASK, INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.report.live import following
from mctskernel.report.terminal import print_summary
from mctskernel.report.view import View
from mctskernel.runner import Conclusion
from mctskernel.search import Ending, Follower


@contextmanager
def follow_search(console: Console | None = None) -> Iterator[tuple[Follower, Callable[[], bool]]]:
    """A follower that shows progress, and whether Ctrl-C was pressed; pressed twice, it ends the process."""
    with stopping() as stop_requested, following(console or PlainConsole()) as follow:
        yield follow, stop_requested


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; pressed twice, it ends the process."""
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


def conclude(conclusion: Conclusion) -> None:
    """Print how the search ended; exits with 130 after Ctrl-C and 3 when nothing could be searched."""
    refuse_without_baseline(conclusion)
    echo(f"Stopped: {conclusion.ending}.")
    print_story(conclusion)


def refuse_without_baseline(conclusion: Conclusion) -> None:
    """Exit with 3 and the reason when the starting kernel has no valid time."""
    if conclusion.ending is Ending.NO_BASELINE:
        echo(f"mctskernel: {conclusion.problem}", err=True)
        sys.exit(BAD_TASK)


def print_story(conclusion: Conclusion) -> None:
    """Print the best path, what the machine lacked, and what to do next; exits with 130 after Ctrl-C."""
    path = conclusion.folder.path
    for remark in conclusion.remarks:
        echo(f"mctskernel: {remark}", err=True)
    print_summary(PlainConsole(), View(conclusion.folder, conclusion.tree, conclusion.answer))
    echo(f"The path with its evidence: mctskernel show {path}")
    echo(f"The kernel:                 mctskernel best {path}")
    if conclusion.ending is Ending.INTERRUPTED:
        echo(f"To go on:                   mctskernel resume {path}")
        sys.exit(INTERRUPTED)
    if conclusion.ending is Ending.WAITING:
        echo(f"To be asked for edits:      mctskernel ask {path}")
        return
    echo(f"To search further:          mctskernel resume {path} --budget N")
