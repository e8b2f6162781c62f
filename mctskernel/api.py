"""The Python interface: one function for each thing that people do with kernels and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mctskernel.config import for_task, read_config
from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language, language_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task, read_text
from mctskernel.executors import open_executor
from mctskernel.profiling.devices import default_kind
from mctskernel.report.comparison import RunComparison, compare_runs, find_runs
from mctskernel.report.live import following
from mctskernel.report.notebook import Run
from mctskernel.report.view import load_view
from mctskernel.run import new_path
from mctskernel.run.search import begin
from mctskernel.tasks.builtin import find_task


def search(
    task: str | Path,
    out: str | Path | None = None,
    *,
    budget: int = 200,
    device: str = "auto",
    **settings: Any,
) -> Run:
    """Search for a faster version of a task's kernel in a new run, and return the run.

    `task` is a folder or the name of a built-in task, `out` the run's folder (`runs/TASK-DATE-TIME` by default),
    `budget` the number of evaluations. `settings` are those of a `--config` file: `seed`, `strategy`, `proposer`,
    `workers`... An interrupted search is continued by `mctskernel resume`. Raises TaskError for a task that can't be
    used or whose starting kernel has no valid time, MisuseError, RunError and DeviceError.
    """
    folder = find_task(task)
    config = read_config({"device": device, **settings, "budget": {"evaluations": budget}})
    loaded = load_task(folder, config.language)
    path = Path(out) if out else new_path(loaded.name)
    with following(Console()) as follow:
        result = begin(path, folder, for_task(config, loaded), follow, lambda: False)
    if result.problem:
        raise TaskError(result.problem)
    return load_run(path)


def evaluate(
    task: str | Path,
    source: str | Path | Kernel | None = None,
    *,
    device: str = "auto",
    architecture: str = "H100",
    language: Language | str | None = None,
    seed: int = 0,
) -> Evaluation:
    """Build, verify, time and count one kernel of a task, as a search would.

    `task` is a folder or the name of a built-in task. `source` is a kernel's text or a file, None for the task's
    starting kernel, the one in `language` if it has several. `device` is `gpu`, `model` (of the GPU that `architecture`
    names) or `auto`. Times are in seconds. Raises TaskError for a task or a file that can't be used, and DeviceError
    for a machine that can't evaluate; a kernel that fails is an evaluation with another outcome than `ok`.
    """
    folder = find_task(task)
    start = load_task(folder, Language(language) if language else None).starting_kernel
    match source:
        case None:
            kernel = start
        case Path():
            kernel = read_kernel(source)
        case str():
            kernel = Kernel(source, start.language)
        case _:
            kernel = source
    (evaluation,) = evaluate_kernels(folder, (kernel,), device, architecture, seed)
    return evaluation


def evaluate_kernels(
    folder: Path, kernels: Sequence[Kernel], device: str = "auto", architecture: str = "H100", seed: int = 0
) -> tuple[Evaluation, ...]:
    """Evaluate kernels of one language, one after the other. Raises TaskError and DeviceError."""
    kind = default_kind() if device == "auto" else device
    spec = DeviceSpec(kind, folder, architecture, seed, kernels[0].language)
    found: dict[int, Evaluation] = {}
    with open_executor(spec, 1) as executor:
        for number, kernel in enumerate(kernels):
            executor.submit(number, kernel)
            found.update(executor.wait())
    return tuple(found[number] for number in range(len(kernels)))


def compare(*runs: str | Path) -> RunComparison:
    """Compare runs or folders of runs: best kernels, and whether differences are significant. Raises RunError."""
    return compare_runs([run for side in dict.fromkeys(runs) for run in find_runs(Path(side))])


def load_run(path: str | Path) -> Run:
    """Load the run in a folder. Raises RunError where it is no run or can't be read."""
    return Run(load_view(Path(path)))


def read_kernel(file: Path) -> Kernel:
    """Read a kernel from a file, in the language that its suffix says. Raises TaskError."""
    language = language_of(file)
    if language is None:
        suffixes = " nor in ".join(each.suffix for each in SOURCE_LANGUAGES)
        raise TaskError(f"{file} is no kernel: its name ends neither in {suffixes}.")
    return Kernel(read_text(file), language)
