"""Compare what the model says binds a kernel with what hardware counters say, on the best paths of measured runs.

python -m mctskernel.experiments.explanations_against_gpu RUN... [--architecture H100]

RUN is a folder that a search on a GPU wrote. Prints for each kernel of its best path the unit that was busy the longest
and the next one, the model's binding term and its next one, and both times; then how often the two agree. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.model.explanation import ExplainedTerm, Explanation, explain
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.quantities import time_text
from mctskernel.profiling.utilisation import BusyTime, busy_times
from mctskernel.report.view import View, load_view

WAITING = frozenset({Term.LATENCY, Term.ATOMICS, Term.BLOCK_LAUNCH, Term.LAUNCH})
"""Terms in which no unit that counters know is busy: they all look like latency."""


@dataclass(frozen=True)
class Compared:
    """A kernel with both accounts of it, the strongest first."""

    run: str
    node: int
    seconds: float
    busy: tuple[BusyTime, ...]
    explanation: Explanation

    @property
    def agrees(self) -> bool:
        """Whether what binds by the model is what binds by the counters."""
        return _seen(self.explanation.binding.name) == self.busy[0].name

    @property
    def nearly_agrees(self) -> bool:
        """Whether it is at least among the first two of them."""
        return _seen(self.explanation.binding.name) in {each.name for each in self.busy[:2]}


def compared(view: View, architecture: str) -> Iterator[Compared]:
    """The kernels of a run's best path that both could explain."""
    device = ModelDevice(view.folder.load_task(), architecture, view.manifest.configuration.seed)
    for step in view.steps:
        measured = view.evaluation(step.node)
        modelled = device.evaluate(Kernel(view.source(step.node), view.manifest.configuration.language))
        busy, explanation = busy_times(measured.counters), explain(modelled)
        if busy and explanation and measured.timings:
            yield Compared(view.folder.path.name, step.node, measured.timings[0].seconds, busy, explanation)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--architecture", default="H100", show_default=True, help="The GPU that the runs were made on.")
def main(runs: tuple[Path, ...], architecture: str) -> None:
    """Compare what binds by the model with what binds by the counters of RUNS."""
    rows = [row for run in runs for row in compared(load_view(run), architecture)]
    console = Console(width=150)
    console.print(_table(rows))
    agreed, nearly = sum(row.agrees for row in rows), sum(row.nearly_agrees for row in rows)
    console.print(
        f"Of {len(rows)} kernels the model's binding term is the busiest unit of {agreed}, and one of the two busiest "
        f"of {nearly}."
    )


def _seen(term: str) -> str:
    """The term as counters see it."""
    return Term.LATENCY.value if term in WAITING else term


def _table(rows: list[Compared]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "node", "agree", "measured", "busiest units", "modelled", "binding terms"):
        table.add_column(
            heading, justify="right" if heading in {"node", "measured", "modelled"} else "left", no_wrap=True
        )
    for row in rows:
        table.add_row(
            row.run,
            str(row.node),
            "yes" if row.agrees else "nearly" if row.nearly_agrees else "no",
            time_text(row.seconds, 3),
            _first_two(row.busy),
            time_text(row.explanation.seconds, 3),
            _first_two(row.explanation.terms),
        )
    return table


def _first_two(parts: tuple[BusyTime, ...] | tuple[ExplainedTerm, ...]) -> str:
    return ", ".join(f"{part.name} {part.share:.0%}" for part in parts[:2])


if __name__ == "__main__":
    main()
