"""What the model says of one kernel of a task, without a search."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling.processes.workers import Worker


def read_kernel(file: Path) -> Kernel:
    """A kernel from a file, in the language that its suffix says. Raises TaskError."""
    known = {language.suffix: language for language in SOURCE_LANGUAGES}
    if file.suffix not in known:
        raise TaskError(f"{file} is no kernel: its name ends neither in {' nor in '.join(known)}.")
    try:
        return Kernel(file.read_text(encoding="utf-8"), known[file.suffix])
    except OSError as error:
        raise TaskError(f"{file} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file} is not UTF-8 text.") from error


def model_kernels(
    folder: Path, kernels: tuple[Kernel | None, ...], language: Language | None, architecture: str
) -> tuple[Evaluation, ...]:
    """Build, verify and price kernels of a task as a search on the model device would.

    None is the starting kernel, the one in `language` if the task has several. Raises TaskError for a task, and
    DeviceError for a machine, on which nothing can be judged.
    """
    start = load_task(folder, language).starting_kernel
    worker = Worker(DeviceSpec("model", folder, architecture, language=start.language))
    try:
        return tuple(worker.evaluate(start if kernel is None else kernel) for kernel in kernels)
    finally:
        worker.close()
