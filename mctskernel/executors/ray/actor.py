"""The process of an evaluator in a cluster: opens a post there and answers one call at a time.

What it is told and says are bytes (`messages`), and what goes wrong in it is a reply. Candidates run in the same
confined child processes as on one machine; this process only waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.task import TaskError
from mctskernel.executors.ray.assignment import Stage
from mctskernel.executors.ray.messages import OPENINGS, Broken, Opening, Reply, encode
from mctskernel.executors.ray.posts import Post, open_post
from mctskernel.executors.task_files import unpacked
from mctskernel.profiling.architecture import FILE_SUFFIX

END, PRESENCE = "end", "presence"
"""The threads of an actor in which it is told to stop while it judges in another, and in which it only is there."""

NONE_BEGUN = -1
"""What `stay` returns before the first call."""

END_SECONDS = 1.5
"""How long what is being done may take to notice that it is to stop."""


class Actor:
    """One evaluator. `greet` comes first; `end` may be called from a thread of its own."""

    def __init__(self, opening: bytes) -> None:
        self._opening = OPENINGS.decode(opening)
        self._open = ExitStack()
        self._busy = threading.Lock()
        self._ended = False
        # The last call that was begun, and the last that `stay` has told of.
        self._begun = self._told = NONE_BEGUN
        self._news = threading.Condition()
        self._post: Post | None = None

    def greet(self) -> bytes:
        """Open the post: Ready or Broken."""
        return self._answer(self._greet)[0]

    def ask(self, call: int, stage: int, data: bytes) -> tuple[bytes, bytes]:
        """The reply to one stage of a job, and what was made for the next. Calls are numbered upwards."""
        with self._news:
            self._begun = call
            self._news.notify()
        return self._answer(lambda: self._opened.answer(Stage(stage), data))

    def stay(self, seconds: float) -> int:
        """The call that was begun last, told when it begins, or after so many seconds, or at the end.

        Whoever waits for it learns that this process is there, or lost, and whether it died of what it was asked.
        """
        with self._news:
            self._news.wait_for(lambda: self._ended or self._begun != self._told, seconds)
            self._told = self._begun
            return self._told

    def end(self) -> None:
        """Stop, whatever is being done, and leave nothing on this node."""
        if self._post is not None:
            self._post.interrupt()
        if self._busy.acquire(timeout=END_SECONDS):
            self._open.close()
        with self._news:
            self._ended = True
            self._news.notify()

    @property
    def _opened(self) -> Post:
        if self._post is None:
            raise DeviceError("The evaluator was asked before it was open.")
        return self._post

    def _greet(self) -> tuple[Reply, bytes]:
        spec = _unpacked_spec(self._opening, self._open)
        self._post = open_post(self._opening, spec, self._open)
        return self._post.ready, b""

    def _answer(self, answer: Callable[[], tuple[Reply, bytes]]) -> tuple[bytes, bytes]:
        with self._busy:
            try:
                reply, product = answer()
            except (DeviceError, TaskError, OSError) as error:
                reply, product = Broken(str(error)), b""
        return encode(reply), product


def _unpacked_spec(opening: Opening, stack: ExitStack) -> DeviceSpec:
    """The device that is described, with its files in a folder of this node."""
    folder = stack.enter_context(unpacked(opening.files))
    architecture = opening.architecture
    if opening.description:
        architecture = str(_written(folder.parent / f"gpu{FILE_SUFFIX}", opening.description))
    return DeviceSpec(opening.kind, folder, architecture, opening.seed, opening.language, opening.trial)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
