"""What the engine costs beside evaluations: milliseconds of selection, backup and journal in growing trees.

    python -m mctskernel.experiments.engine_overhead [--nodes 10000]

Kernels are made up and their evaluations free, so all the time is the engine's. An iteration is what a search
does for one evaluated node: ask; take edits where they run out; submit; evaluate; back up; journal each of it.
"""

from __future__ import annotations

import argparse
import functools
import math
import platform
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Check, Evaluation, Outcome, Resources, Score, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.events import Event
from mctskernel.tree.evidence import Filed
from mctskernel.tree.journal import EventLog, Journal, MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch, Try
from mctskernel.tree.strategies.strategy import Propose

EDITS_PER_REPLY = 12
FAILURES = 0.2
SHAPES = {
    "default policy": Policy(),
    "plain UCT": Policy(selection="uct", widening="unlimited"),
    "one wide node": Policy(widening="unlimited", patience=1_000_000),
}


@dataclass(frozen=True)
class Overhead:
    """A tree that was grown, and milliseconds an iteration at its end."""

    tree: Tree
    ask: float
    tell: float
    journal: float


def measure(journal: EventLog, policy: Policy, nodes: int) -> Overhead:
    """Grows a tree of so many nodes; the last tenth of them is timed."""
    stopwatch, rng = Stopwatch(), random.Random(0)  # noqa: S311 - repeatable, not secret
    search = TreeSearch(Tree(), _TimedLog(journal, stopwatch), MemoryBlobs())
    search.evaluated(search.start(Kernel("0"), policy, seed=0), *_result(rng))
    timed = max(nodes // 10, 1)
    while search.tree.evaluations < nodes:
        if search.tree.evaluations == nodes - timed:
            stopwatch.seconds.clear()
        _iterate(search, rng, stopwatch)
    ask, tell, journalling = (stopwatch.seconds[name] / timed * 1e3 for name in ("ask", "tell", "journal"))
    return Overhead(search.tree, ask, tell - journalling, journalling)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Milliseconds an iteration that the engine costs.")
    parser.add_argument("--nodes", type=int, default=10_000)
    nodes: int = parser.parse_args().nodes
    table = Table("tree", "journal", *("nodes", "widest", "deepest", "ask", "tell", "journal", "sum, ms"))
    table.title = f"{_cpu()}, Python {platform.python_version()}; means of the last tenth"
    for shape, policy in SHAPES.items():
        for name, open_journal in _JOURNALS.items():
            for count in (nodes // 10, nodes):
                with tempfile.TemporaryDirectory() as folder:
                    _add_row(table, shape, name, measure(open_journal(Path(folder)), policy, count))
        table.add_section()
    Console(width=120).print(table)


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Counts the body's time."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class _TimedLog:
    def __init__(self, log: EventLog, stopwatch: Stopwatch) -> None:
        self._log, self._stopwatch = log, stopwatch

    def append(self, event: Event) -> Event | Filed:
        with self._stopwatch.on("journal"):
            return self._log.append(event)


_JOURNALS: dict[str, Callable[[Path], EventLog]] = {
    "in memory": lambda _: MemoryJournal(),
    "file, no fsync": lambda folder: Journal(folder / "journal.jsonl", durable=False),
    "file, fsync": lambda folder: Journal(folder / "journal.jsonl"),
}


def _iterate(search: TreeSearch, rng: random.Random, stopwatch: Stopwatch) -> None:
    with stopwatch.on("ask"):
        request = search.ask()
    match request:
        case Propose():
            proposals = Proposals(tuple(_edit(request.node, rng) for _ in range(EDITS_PER_REPLY)))
            with stopwatch.on("tell"):
                search.proposed(request, proposals)
        case Try(edit=Edit(change=WholeSource(source=source))):
            kernel, result = Kernel(source), _result(rng)
            with stopwatch.on("tell"):
                node = search.submit(request, kernel)
                if node is not None:
                    search.evaluated(node, *result)
        case _:
            raise RuntimeError(f"The search ended early: {request}.")


def _edit(node: int, rng: random.Random) -> Edit:
    source = WholeSource(f"{node} {rng.randrange(10**9)}")
    return Edit(Category.TUNING, "A tunable macro", source, "why it helps", "less traffic", rng.random())


def _result(rng: random.Random) -> tuple[Evaluation, Score]:
    """An evaluation of about the size that a real one has."""
    if rng.random() < FAILURES:
        return Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, "expected a ';'", log="x"), Score(-1.0, 0.0)
    reward = rng.gauss(0, 1)
    speedup = math.exp(reward)
    evaluation = Evaluation(
        Outcome.OK,
        Source.MODELLED,
        timings=(Timing("rows=8192 cols=4096", 1e-4 / speedup, 1e-4, 1e-4),),
        counters={f"smsp__inst_executed_pipe_{number}.sum": rng.random() for number in range(20)},
        terms={f"term {number}": rng.random() for number in range(10)},
        resources=(Resources("kernel", 32, 4096),),
        checks=tuple(Check("rows=3 cols=130", seed, passed=True, error=0.1) for seed in range(4)),
        stage_seconds={"build": 0.1, "verify": 0.1, "time": 0.1},
    )
    return evaluation, Score(reward, speedup, {"time": reward, "relief": 0.0})


def _add_row(table: Table, shape: str, journal: str, overhead: Overhead) -> None:
    nodes = overhead.tree.nodes
    sizes = (len(nodes), max(node.children for node in nodes), max(node.depth for node in nodes))
    parts = (overhead.ask, overhead.tell, overhead.journal)
    cells = [*(f"{size}" for size in sizes), *(f"{part:.3f}" for part in parts), f"{sum(parts):.3f}"]
    table.add_row(shape, journal, *cells)


@functools.cache
def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().split("\n") if information.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown CPU")


if __name__ == "__main__":
    main()
