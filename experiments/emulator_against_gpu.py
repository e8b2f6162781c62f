"""What the PTX emulator computes against what a GPU computes, for the starting kernels of the built-in tasks.

    python -m mctskernel.experiments.emulator_against_gpu --out docs/results/emulator_against_h100.json

Both run the same kernel on the same inputs at every verification case. They differ where the emulator says that they
may: contracted multiply-adds, approximate functions, denormals, the order of sums in tensor cores and of atomics.
Differences are in units of the output type's rounding at the largest magnitude of the output's last axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mctskernel.core.dtypes import is_floating, rounding_unit
from mctskernel.core.kernel import Language
from mctskernel.core.task import Array
from mctskernel.core.task_file import languages, load_task
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.emulable import emulable
from mctskernel.profiling.emulation import Stopped, emulated_outputs
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.processes.conversation import LostError
from mctskernel.profiling.stages import Stages
from mctskernel.tasks import builtin_tasks


@dataclass(frozen=True)
class Row:
    """One kernel: the fraction of output elements that are bit-equal, the largest difference in roundings."""

    task: str
    language: str
    cases: int
    elements: int
    equal: float
    roundings: float
    remark: str = ""


@click.command()
@click.option("--tasks", help="Names, with commas. [default: all built-in tasks]")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the rows as JSON.")
def main(tasks: str | None, out: Path | None) -> None:
    """Run every starting kernel on both and print how far apart the results are."""
    chosen = tasks.split(",") if tasks else list(builtin_tasks())
    wanted = [(name, language) for name in chosen for language in languages(builtin_tasks()[name])]
    rows, machine = [], {}
    for name, language in track(wanted, "Comparing", console=Console(stderr=True)):
        row, gpu = compared(name, language)
        rows.append(row)
        machine = {"gpu": gpu}
    if out is not None:
        write_result(out, {**machine, "rows": [asdict(row) for row in rows]})
    Console().print(table(rows))


def compared(name: str, language: Language) -> tuple[Row, str]:
    """One task's starting kernel on both, and the GPU's name."""
    folder = builtin_tasks()[name]
    task = load_task(folder, language)
    # Nothing is timed, so the large shapes need no inputs.
    task = replace(task, search_shapes=task.verify_shapes[:1])
    judge = GpuJudge(task, seed=0, metrics=())
    try:
        gpu = judge.opened.gpu
        candidate = prepare(task, task.starting_kernel, gpu.architecture, Stages())
        found = emulable(task, candidate, Stages())
        pairs: list[tuple[Array, Array]] = []
        for case, measured in judge.outputs(candidate):
            emulated = emulated_outputs(task, found.candidate, found.modules, case)
            if isinstance(emulated, Stopped):
                return Row(name, language, 0, 0, 0.0, 0.0, emulated.check.message), gpu.name
            pairs += [(emulated[output], measured[output]) for output in measured]
        return row_of(name, language, pairs, found.remark), gpu.name
    except (RefusedError, LostError) as error:
        return Row(name, language, 0, 0, 0.0, 0.0, str(error)), judge.opened.gpu.name
    finally:
        judge.close()


def row_of(name: str, language: str, pairs: list[tuple[Array, Array]], remark: str = "") -> Row:
    """How far apart pairs of arrays are."""
    elements = sum(array.size for array, _ in pairs)
    equal = sum(
        int((a.view(np.uint8) == b.view(np.uint8)).reshape(*a.shape, -1).all(-1).sum()) for a, b in pairs
    )
    return Row(name, language, len(pairs), elements, equal / elements, max(_roundings(pairs)), remark)


def _roundings(pairs: Iterable[tuple[Array, Array]]) -> Iterator[float]:
    for emulated, measured in pairs:
        ours, theirs = emulated.astype(np.float64), measured.astype(np.float64)
        scale = np.maximum(np.abs(theirs).max(axis=-1, keepdims=True, initial=0.0), np.finfo(np.float32).tiny)
        unit = rounding_unit(emulated.dtype) * scale if is_floating(emulated.dtype) else 1.0
        yield float((np.abs(ours - theirs) / unit).max(initial=0.0))


def table(rows: list[Row]) -> Table:
    """The rows as people read them."""
    made = Table(box=None, pad_edge=False)
    for heading in (
        "task",
        "language",
        "cases",
        "elements",
        "bit-equal",
        "largest difference, roundings",
        "remark",
    ):
        made.add_column(heading, justify="left" if heading in ("task", "language", "remark") else "right")
    for row in rows:
        figures = (str(row.cases), f"{row.elements:,}", f"{row.equal:.2%}", f"{row.roundings:.3g}")
        made.add_row(row.task, row.language, *figures, row.remark)
    return made


if __name__ == "__main__":
    main()
