"""Executors that trials lend one after the other, so that arms share what they evaluate."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import Executor
from mctskernel.executors import open_executor
from mctskernel.experiments.ablation.subjects import TaskSubject
from mctskernel.experiments.suites.shared_evaluations import SharedEvaluations
from mctskernel.run import Configuration


class Evaluators:
    """The executor of the latest task and seed, open as long as trials of both follow each other; a context manager.

    On `model` a kernel's evaluation depends on the task, the language and the seed of the inputs alone, so a kernel
    that several arms come to is evaluated once. On a GPU one lucky time would be every arm's, and each has its own; so
    does a search that seconds end.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._key: tuple[object, ...] = ()
        self._shared: Executor | None = None

    def lent(self, subject: TaskSubject, configuration: Configuration) -> Executor | None:
        """What evaluates the kernels of a trial; None where it has its own. Raises TaskError and DeviceError."""
        if configuration.device != "model" or configuration.budget.seconds is not None:
            return None
        key = subject.source, configuration.language, configuration.seed, configuration.workers
        if key != self._key:
            self.close()
            spec = DeviceSpec(
                configuration.device,
                subject.folder,
                architecture=configuration.architecture,
                seed=configuration.seed,
                language=configuration.language,
            )
            opened = self._open.enter_context(
                open_executor(spec, configuration.workers, configuration.executor)
            )
            self._key, self._shared = key, SharedEvaluations(opened)
        return self._shared

    def close(self) -> None:
        """End the processes of the executor that is open."""
        self._key, self._shared = (), None
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
