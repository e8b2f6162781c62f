"""What the tree's engine costs as the tree grows: time of an iteration, memory of a node, time of a replay.

    python -m mctskernel.experiments.tree_scale --out tree_scale.json --plot tree_scale.svg
    python -m mctskernel.experiments.tree_scale --tree "uct, max" --strategy greedy --seconds 60

An iteration is what a search does for one evaluated node: ask; take edits where they run out; submit; back up the
evaluation. Its cost is the processor's time of all that, without storing (encoding and writing the journal, hashing and
keeping blobs), which is told apart; so is reading the edit that is to be tried. Kernels are made up
(`mctskernel.experiments.subjects.grown_trees`).
"""

from __future__ import annotations

import functools
import gc
import math
import platform
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.subjects.grown_trees import Growth
from mctskernel.tree.journal import Journal, read_tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.strategies import STRATEGIES

_WALK = Policy(strategy="mcts", prior="given", exploration=1.4)

TREES: Mapping[str, Policy] = {
    **{
        f"{selection}, {value}": msgspec.structs.replace(_WALK, selection=selection, value=value)
        for selection in ("puct", "uct")
        for value in ("max", "mean")
    },
    "one wide node": msgspec.structs.replace(_WALK, widening="unlimited", patience=1_000_000),
    "a chain": msgspec.structs.replace(_WALK, selection="greedy", widening="fixed", widening_factor=1),
}
"""What grows by the tree's policy, which names all that matters here; the last two are the extremes of its shape.

Walks go by the statistics of the nodes on their way alone: what edits did elsewhere is a cost of its own, told by
`--strategy mcts`.
"""

BATCH, BATCHES = 20, 15
"""Iterations whose mean is one sample, and samples of which the least is the figure: what else runs only adds to it."""


class Cost(msgspec.Struct, frozen=True):
    """Milliseconds of one iteration at a tree of so many nodes; `storing` is into a journal that isn't flushed.

    `choosing_and_counting` is selection, backup and bookkeeping: `asking_and_telling` but for reading the edit to try.
    `pace` are the seconds of a fixed loop in the same minute, the least of all: how fast the processor was just then.
    """

    nodes: int
    asking_and_telling: float
    choosing_and_counting: float
    storing: float
    pace: float
    mean_depth: float
    widest: int


class Scale(msgspec.Struct, frozen=True):
    """One tree as it grew.

    `bytes_per_node` is Python's own memory of the replayed tree, without blobs and journal; `replay_seconds` the
    processor's time to read the journal; `journal_bytes` the size of the file; `edits` were proposed in all.
    """

    tree: str
    costs: tuple[Cost, ...]
    edits: int
    bytes_per_node: float
    replay_seconds: float
    journal_bytes: int


class Report(msgspec.Struct, frozen=True):
    """All trees, on one machine."""

    machine: dict[str, str]
    scales: tuple[Scale, ...]


def measure(name: str, policy: Policy, sizes: list[int], seconds: float) -> Scale:
    """Grows a tree to the last of the sizes, which ascend, that it can have and reaches in so much processor time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path, durable=False) as journal:
            growth = Growth(journal, policy)
            costs = tuple(_costs(growth, sizes, time.process_time() + seconds))
            edits = sum(len(node.edits) for node in growth.tree.nodes)
        del growth
        return Scale(
            tree=name,
            costs=costs,
            edits=edits,
            replay_seconds=min(_replay_seconds(path) for _ in range(2)),
            bytes_per_node=bytes_per_node(path),
            journal_bytes=path.stat().st_size,
        )


def bytes_per_node(journal: Path) -> float:
    """Bytes that Python allocates for the tree of a journal and still holds when it is read, by node."""
    gc.collect()
    tracemalloc.start()
    tree = read_tree(journal)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(tree.nodes)


@click.command()
@click.option(
    "--tree", "trees", multiple=True, type=click.Choice([*TREES]), help="Grow this one; all by default."
)
@click.option(
    "--strategy", "strategies", multiple=True, type=click.Choice([*STRATEGIES]), help="Grow by this one."
)
@click.option("--nodes", default=100_000, show_default=True, help="Evaluated nodes of the largest tree.")
@click.option("--seconds", default=math.inf, help="Processor time after which a tree grows no further.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as JSON."
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw cost against size there.")
def main(
    *,
    trees: tuple[str, ...],
    strategies: tuple[str, ...],
    nodes: int,
    seconds: float,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Grow trees from made-up kernels and print what the engine costs."""
    chosen = {name: TREES[name] for name in trees or (() if strategies else TREES)}
    chosen |= {name: Policy(strategy=name) for name in strategies}
    scales = []
    for name, policy in chosen.items():
        scales.append(measure(name, policy, sizes_to(nodes), seconds))
        Console(width=120).print(table(scales[-1:]))
    report = Report(_machine(), tuple(scales))
    if out:
        write_result(out, report)
    if plot:
        draw(report, plot)


def sizes_to(nodes: int) -> list[int]:
    """1, 2 and 5 by powers of ten, from 1000 on, and the number itself."""
    steps = (step * 10**power for power in range(3, 9) for step in (1, 2, 5))
    return [*(size for size in steps if size < nodes), nodes]


def table(scales: list[Scale]) -> Table:
    """A row for each tree and size."""
    found = Table(
        "tree",
        "nodes",
        "mean depth",
        "widest",
        "ms",
        "ms without reading",
        "ms of storing",
        "pace",
        "bytes",
        "replay",
    )
    for scale in scales:
        for cost in scale.costs:
            last = cost is scale.costs[-1]
            found.add_row(
                scale.tree,
                f"{cost.nodes}",
                f"{cost.mean_depth:.1f}",
                f"{cost.widest}",
                f"{cost.asking_and_telling:.3f}",
                f"{cost.choosing_and_counting:.3f}",
                f"{cost.storing:.3f}",
                f"{cost.pace:.2f} s",
                f"{scale.bytes_per_node:.0f}" if last else "",
                f"{scale.replay_seconds:.2f} s" if last else "",
            )
    return found


def _costs(growth: Growth, sizes: list[int], end: float) -> Iterator[Cost]:
    for size in sizes:
        if not _grow(growth, size - BATCH * BATCHES, end):
            return
        samples = [sample for _ in range(BATCHES) if (sample := _sample(growth))]
        nodes = growth.tree.nodes
        yield Cost(
            nodes=len(nodes),
            asking_and_telling=min(sample.asking_and_telling for sample in samples),
            choosing_and_counting=min(sample.choosing_and_counting for sample in samples),
            storing=min(sample.storing for sample in samples),
            pace=min(sample.pace for sample in samples),
            mean_depth=float(np.mean([node.depth for node in nodes[-BATCH * BATCHES :]])),
            widest=max(node.children for node in nodes),
        )


def _grow(growth: Growth, nodes: int, end: float = math.inf) -> bool:
    while growth.tree.evaluations < nodes:
        if time.process_time() > end or not growth.step():
            return False
    return True


class _Sample(NamedTuple):
    """Milliseconds of an iteration, and the pace, as in `Cost`."""

    asking_and_telling: float
    choosing_and_counting: float
    storing: float
    pace: float


def _sample(growth: Growth) -> _Sample | None:
    pace, before, evaluations = _pace(), replace(growth.clock), growth.tree.evaluations
    _grow(growth, evaluations + BATCH)
    clock, done = growth.clock, (growth.tree.evaluations - evaluations) / 1e3
    if not done:
        return None
    engine, reading = clock.engine - before.engine, clock.reading - before.reading
    return _Sample(engine / done, (engine - reading) / done, (clock.storing - before.storing) / done, pace)


def _pace() -> float:
    start, total = time.process_time(), 0
    for number in range(300_000):
        total += number * number % 7
    return 10 * (time.process_time() - start)


def _replay_seconds(path: Path) -> float:
    start = time.process_time()
    read_tree(path)
    return time.process_time() - start


def draw(report: Report, out: Path) -> None:
    """Plot the cost of an iteration against size, a line for each tree."""
    # Imported here: matplotlib is the extra `plots`.
    import matplotlib as mpl  # noqa: PLC0415 - as said above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as said above

    mpl.rcParams.update({"svg.hashsalt": "mctskernel", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    for scale in report.scales:
        sizes = [cost.nodes for cost in scale.costs]
        axes.plot(sizes, [cost.asking_and_telling for cost in scale.costs], marker=".", label=scale.tree)
    axes.axhline(0.2, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="evaluated nodes", ylabel="ms an iteration, without storing")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


@functools.cache
def _machine() -> dict[str, str]:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().split("\n") if information.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(names, platform.processor()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }


if __name__ == "__main__":
    main()
