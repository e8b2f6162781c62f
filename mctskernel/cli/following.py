"""What `search`, `resume` and `measure` share: progress, Ctrl-C, and the story at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from mctskernel.cli.errors import BAD_TASK, INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.device import is_remote
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Language
from mctskernel.executors import gpus_of
from mctskernel.report.live import following
from mctskernel.report.terminal import print_summary
from mctskernel.report.view import View
from mctskernel.runner import Conclusion
from mctskernel.search import Ending, Follower

GPU_COMPILERS = {Language.CUDA: 4, Language.TRITON: 8}
"""Processes that compile for the one that holds a GPU. Triton takes a second and more over tensor-core kernels."""

MORE_COMPILERS = {Language.CUDA: 2, Language.TRITON: 4}
"""And for each further GPU: to build takes about as long as to judge, and the first ones' rest bridges what varies."""


def workers_on(device: str, language: Language, executor: ExecutorOptions = LOCAL) -> int:
    """How many workers a device gets where nobody says: one for each core that this process may use.

    GPUs get `GPU_COMPILERS` and `MORE_COMPILERS` at the most, and where evaluations are looked up there is one: more
    would only let the search run ahead of what it knows. On a server and in a cluster it is 0, as many as there
    is room for, which changes meanwhile. Raises DeviceError for GPUs that aren't there.
    """
    if executor.engine == "ray":
        return 0
    if device == "recorded":
        return 1
    if is_remote(device):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device != "gpu":
        return cores
    further = len(gpus_of(executor)) - 1
    return min(cores, GPU_COMPILERS[language] + further * MORE_COMPILERS[language])


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
