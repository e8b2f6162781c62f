"""How well the model predicts kernels that it was not fitted on: the starting kernels of the built-in tasks.

    python -m mctskernel.experiments.starting_kernels [--measured docs/results/suite_h100.json] [--architecture H100]

The file holds what `experiments.suite` measured: a list with `task`, `language` and `start_seconds`. For each this
prints the measured and the modelled time, their ratio, and what binds. Needs no GPU.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.experiments.records.provenance import Rows
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.candidate import RefusedError
from mctskernel.profiling.model.explanation import MEANINGS
from mctskernel.profiling.model.price import shares
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.report.comparison import rank_correlation
from mctskernel.tasks import find_task


class Measured(msgspec.Struct, frozen=True):
    """A row of the suite; other fields are passed over."""

    task: str
    language: Language
    start_seconds: float


@click.command()
@click.option(
    "--measured",
    type=click.Path(path_type=Path, exists=True),
    default=Path("docs/results/suite_h100.json"),
    show_default=True,
)
@click.option("--architecture", default="H100", show_default=True)
def main(measured: Path, architecture: str) -> None:
    """Print the table."""
    rows = msgspec.json.decode(measured.read_bytes(), type=Rows[Measured]).rows
    table = Table("task", "language", "measured us", "modelled us", "ratio", "binds")
    pairs = []
    for row in rows:
        try:
            seconds, binding = modelled(row, architecture)
        except RefusedError as refusal:
            table.add_row(row.task, row.language.value, f"{row.start_seconds * 1e6:,.1f}", refusal.message)
            continue
        pairs.append((row.start_seconds, seconds))
        table.add_row(
            row.task,
            row.language.value,
            f"{row.start_seconds * 1e6:,.1f}",
            f"{seconds * 1e6:,.1f}",
            f"{seconds / row.start_seconds:.2f}",
            binding,
        )
    console = Console()
    console.print(table)
    known = np.array(pairs)
    off = [max(first / second, second / first) for first, second in pairs]
    console.print(
        f"{len(pairs)} kernels: within 20 % {sum(each <= 1.2 for each in off)}, median factor "
        f"{statistics.median(off):.2f}, largest {max(off):.2f}, rank correlation "
        f"{rank_correlation(known[:, 0], known[:, 1]):.3f}"
    )


def modelled(row: Measured, architecture: str) -> tuple[float, str]:
    """Modelled seconds of a task's starting kernel, and the term that explains most of them. Raises RefusedError."""
    task = load_task(find_task(row.task), row.language)
    pricing, stages = Pricing(task, load_architecture(architecture), 0), Stages()
    prepared = pricing.prepare(task.starting_kernel, stages)
    with pricing.disassembling(prepared) as disassemblies:
        found = pricing.price(prepared, disassemblies, stages)[0]
    explained = shares(found.terms)
    return found.seconds, max(MEANINGS, key=lambda term: explained.get(term, 0.0))


if __name__ == "__main__":
    main()
