"""The engine behind the tools: tasks and runs by name, and the one run that is open for ask and tell."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.config import SearchConfig, for_task
from mctskernel.core.budget import Budget
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import MisuseError
from mctskernel.external.messages import ReplyError
from mctskernel.external.session import Session, begin_session, open_session
from mctskernel.loop import Snapshot, StopReason
from mctskernel.report.view import View, load_view
from mctskernel.run import new_path
from mctskernel.tasks.builtin import builtin_tasks
from mctskernel.tree.policy import Policy

PATIENCE = 3
"""Replies without a new kernel after which a node is given up: an agent's next reply may have what this one hadn't."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_TURN_SECONDS = 0.1  # how often a call that waits for its turn looks whether it still should


class RequestError(MisuseError, ValueError):
    """A request that can't be granted; the message is a sentence for the agent, as that of any UserError."""


@dataclass(frozen=True)
class Watch:
    """How a call is watched: `follow` is called after each evaluation, `stop_requested` says if it is cancelled."""

    follow: Callable[[Snapshot], None]
    stop_requested: Callable[[], bool]


class Engine:
    """Begins runs for agents and evaluates their edits, one call at a time: there is one device. Any thread may call.

    The run that was used last stays open, so that its workers are there for the next call; meanwhile no other
    process can search it. Reading needs no turn. `runs` holds every run that an agent may see, `tasks` the user's own
    tasks, if any. `config` is that of a run that an agent begins, whose budget is the most that it may spend.
    """

    def __init__(self, runs: Path, tasks: Path | None, config: SearchConfig) -> None:
        self.runs = runs
        self._config = config
        self._turn = threading.Lock()
        self._watch = _UNWATCHED
        self._open: tuple[str, Session] | None = None
        self._stack = ExitStack()
        self.task_folders = _tasks(tasks)

    def run_names(self) -> tuple[str, ...]:
        manifests = self.runs.glob("*/run.json")
        newest = sorted(manifests, key=lambda file: file.stat().st_mtime, reverse=True)
        return tuple(file.parent.name for file in newest)

    def run_path(self, run: str) -> Path:
        """Where the run of a name is. Raises RequestError for what is no name, or leads elsewhere."""
        path = self.runs / run
        if not _NAME.fullmatch(run) or path.resolve().parent != self.runs.resolve():
            raise RequestError(
                f"'{run[:100]}' is not the name of a run: letters, digits, '.', '_' and '-', no path."
            )
        return path

    def view(self, run: str) -> View:
        """What is known of a run. Raises RequestError and RunError."""
        path = self.run_path(run)
        if not (path / "run.json").is_file():
            raise RequestError(f"There is no run '{run}': list_tasks says which there are.")
        return load_view(path)

    def create(
        self,
        task: str,
        watch: Watch,
        *,
        run: str | None = None,
        language: Language | None = None,
        evaluations: int | None = None,
        seed: int = 0,
    ) -> str:
        """Begin a run, and return its name. Raises RequestError, and what `begin_session` raises."""
        folder = self.task_folders.get(task)
        if folder is None:
            raise RequestError(f"There is no task '{task[:100]}', only {', '.join(self.task_folders)}.")
        most = self._config.budget.evaluations
        if evaluations is not None and most is not None and evaluations > most:
            raise RequestError(
                f"A run may have {most} evaluations at the most on this server, not {evaluations}."
            )
        loaded = load_task(folder, language)
        if loaded.space:
            raise TaskError(f"{loaded.name} is a search-space cache: there are no kernels in it to edit.")
        config = msgspec.structs.replace(
            self._config,
            proposer="outside",
            language=language,
            seed=seed,
            budget=Budget(evaluations=evaluations or most),
            policy=Policy(patience=PATIENCE),
        )
        name = run or new_path(task).name
        path = self.run_path(name)
        with self.turn(watch):
            self._close()
            opening = begin_session(path, folder, for_task(config, loaded), self._follow, self._is_stopped)
            self._open = (name, self._stack.enter_context(opening))
        return name

    @contextmanager
    def session(self, run: str, watch: Watch, *, finish: bool = False) -> Iterator[Session]:
        """The run, open for asking and telling; it gets its answer if it is to `finish`. Raises as `open_session`."""
        with self.turn(watch):
            if self._open is None or self._open[0] != run:
                view = self.view(run)
                view.refuse_recorded()
                self._close()
                opening = open_session(view.folder.path, None, None, self._follow, self._is_stopped)
                self._open = (run, self._stack.enter_context(opening))
            session = self._open[1]
            yield session
            if not (finish or session.is_over):
                return
            is_stopped = session.stop_reason is StopReason.INTERRUPTED
            problem = "" if is_stopped else session.finish().problem
            self._close()
            if finish and is_stopped:
                raise RequestError("Cancelled before the final validation.")
            if problem:
                raise RequestError(problem)

    @contextmanager
    def turn(self, watch: Watch) -> Iterator[None]:
        """Nothing else is on the device. Raises RequestError if the call is cancelled before its turn."""
        while not self._turn.acquire(timeout=_TURN_SECONDS):
            if watch.stop_requested():
                raise RequestError("Cancelled before its turn.")
        try:
            self._watch = watch
            yield
        except (ReplyError, RequestError):
            raise  # The agent's mistake: the session is as it was.
        except BaseException:
            self._close()  # A session whose device broke, or that was cut short, is opened anew.
            raise
        finally:
            self._watch = _UNWATCHED
            self._turn.release()

    def close(self) -> None:
        """Let go of the run that is open; nothing of it is lost."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        self._open = None
        self._stack.close()

    def _follow(self, snapshot: Snapshot) -> None:
        self._watch.follow(snapshot)

    def _is_stopped(self) -> bool:
        return self._watch.stop_requested()


_UNWATCHED = Watch(lambda _: None, lambda: False)


def _tasks(folder: Path | None) -> dict[str, Path]:
    """Built-in tasks and the user's. Raises TaskError where two have one name."""
    tasks = builtin_tasks()
    for file in sorted(folder.glob("*/task.toml")) if folder else ():
        name = file.parent.name
        if name in tasks:
            raise TaskError(f"{file.parent} has the name of a built-in task: give the folder another one.")
        tasks[name] = file.parent
    return tasks
