"""Whether a starting kernel that another program generated is right, before it is offered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from mctskernel.core.device import DeviceError, DeviceSpec, Trial
from mctskernel.core.kernel import Language
from mctskernel.core.task_file import task_of, write_new_task
from mctskernel.executors.gpu import GpuExecutor


def refusal_on_gpu(files: Mapping[str, str | bytes], language: Language) -> str:
    """Why the starting kernel in a task's files isn't right on this machine's GPU; empty if it is.

    It is verified at the verify and the held-out shapes. Raises TaskError for files that are no task.
    """
    with TemporaryDirectory(prefix="mctskernel-") as parent:
        folder = Path(parent) / "task"
        write_new_task(folder, files)
        spec = DeviceSpec("gpu", folder, language=language, trial=Trial.CHECK)
        try:
            with GpuExecutor(spec, metrics=()) as executor:
                executor.submit(0, task_of(spec).starting_kernel)
                ((_, evaluation),) = executor.wait()
        except DeviceError as error:
            return f"it can't be verified: {error}"
    if evaluation.ok:
        return evaluation.quarantine
    return f"{evaluation.outcome}: {evaluation.message}"
