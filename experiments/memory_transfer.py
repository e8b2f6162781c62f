"""Does what other tasks taught help a search? Each task searched without a memory, and with that of all the others.

    python -m mctskernel.experiments.memory_transfer --runs runs/transfer

Searches that are finished in the folder are not repeated. Prints two tables in Markdown. The best speed-up after some
evaluations, the starting kernel's included, on the `model` device with one worker. And, of the edits that were tried
in the searches without a memory, pairs of one node of which one improved it and the other didn't: in how many the
first had the greater prior, the greater factor from the other tasks' memory, the greater product. Ties are halves.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from mctskernel.answer import believed_speedup
from mctskernel.core.experience import names_of
from mctskernel.edits.experienced import Rates
from mctskernel.memory import encode_snapshot, open_memory, read_snapshot
from mctskernel.profiling.gains import gain_of
from mctskernel.run import open_run
from mctskernel.tree.blobs import get_edit
from mctskernel.tree.journal import read_tree

TASKS = ("softmax", "layernorm", "rmsnorm", "bias_gelu", "transpose")


@dataclass(frozen=True)
class Comparison:
    """The best speed-ups of a task after some evaluations, without and with a memory of the other tasks."""

    task: str
    seed: int
    without: tuple[float, ...]
    told: tuple[float, ...]


@dataclass(frozen=True)
class Concordance:
    """Pairs of edits of which one improved their node, and in how many a ranking put it first; ties are halves."""

    task: str
    pairs: int
    prior: float
    factor: float
    both: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Search what hasn't been searched yet and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--budget", type=int, default=20)
    given = parser.parse_args(arguments)
    moments = sorted({max(given.budget // 4, 2), max(given.budget // 2, 2), given.budget})
    print(table(list(compare(given.runs, given.tasks, given.seeds, given.budget, moments)), moments))
    print()
    print(concordance_table(list(concordances(given.runs, given.tasks, given.seeds, given.budget))))


def compare(
    runs: Path, tasks: Sequence[str], seeds: Sequence[int], budget: int, moments: Sequence[int]
) -> Iterator[Comparison]:
    """Search every task with every seed, first without a memory, then with what the other tasks' searches taught."""
    for seed in seeds:
        alone = {task: _search(runs, task, seed, budget) for task in tasks}
        for task in tasks:
            others = [run for other, run in alone.items() if other != task]
            told = _search(runs, task, seed, budget, _snapshot(_snapshot_file(runs, task, seed), others))
            yield Comparison(task, seed, best_after(alone[task], moments), best_after(told, moments))


def best_after(run: Path, moments: Sequence[int]) -> tuple[float, ...]:
    """The best speed-up among the first evaluations of a run, for several numbers of them."""
    tree = read_tree(open_run(run).journal)
    found = [believed_speedup(tree.nodes[number]) for number in tree.evaluated]
    return tuple(max(found[:moment]) for moment in moments)


def table(comparisons: Sequence[Comparison], moments: Sequence[int]) -> str:
    """The comparisons and, last, the geometric means."""
    heads = [f"{kind}, {moment}" for moment in moments for kind in ("alone", "told")]
    rows = [f"| {each.task} | {each.seed} | {_cells(each.without, each.told)} |" for each in comparisons]
    without = [
        _geometric_mean(column) for column in zip(*(each.without for each in comparisons), strict=True)
    ]
    told = [_geometric_mean(column) for column in zip(*(each.told for each in comparisons), strict=True)]
    head = [f"| task | seed | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    return "\n".join([*head, *rows, f"| geometric mean | | {_cells(without, told)} |"])


def concordances(
    runs: Path, tasks: Sequence[str], seeds: Sequence[int], budget: int
) -> Iterator[Concordance]:
    """How well priors and the other tasks' memory tell what improved a node from what didn't, by task."""
    for task in tasks:
        pairs = [
            pair
            for seed in seeds
            for pair in _pairs(_folder(runs, task, seed, budget), _snapshot_file(runs, task, seed))
        ]
        columns = [[_first(good[each], bad[each]) for good, bad in pairs] for each in range(3)]
        yield Concordance(task, len(pairs), *(math.fsum(column) for column in columns))


def concordance_table(found: Sequence[Concordance]) -> str:
    """The concordances and, last, their sums."""
    rows = [(each.task, each.pairs, each.prior, each.factor, each.both) for each in found]
    pairs, prior, factor, both = (sum(column) for column in list(zip(*rows, strict=True))[1:])
    rows.append(("all", pairs, prior, factor, both))
    head = "| task | pairs | prior | memory | both |\n|---|---|---|---|---|"
    return "\n".join([head, *(f"| {' | '.join(_count(cell) for cell in row)} |" for row in rows)])


def _count(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:g}"


def _first(good: float, bad: float) -> float:
    return 0.5 if math.isclose(good, bad) else float(good > bad)


_Ranks = tuple[float, float, float]


def _pairs(run: Path, snapshot: Path) -> Iterator[tuple[_Ranks, _Ranks]]:
    """Prior, factor and product, of an edit that improved its node and of one of the same node that didn't."""
    folder = open_run(run)
    tree, names = read_tree(folder.journal), names_of(folder.load_task())
    rates = Rates([each.experience for each in read_snapshot(snapshot).experiences])
    for parent in tree.nodes:
        before = parent.evaluation
        if before is None or not parent.children:
            continue
        causes = before.diagnosis.causes if before.diagnosis else ()
        bottleneck = str(causes[0].bottleneck) if causes else ""
        ranked: dict[bool, list[_Ranks]] = {True: [], False: []}
        for child in map(tree.nodes.__getitem__, tree.children_of(parent.id)):
            if child.evaluation is None or child.edit is None:
                continue
            edit, gain = get_edit(folder.blobs, parent.edits[child.edit]), gain_of(child.evaluation, before)
            factor = rates.factor(edit, bottleneck, names)
            ranked[gain is not None and gain.is_certain].append((edit.prior, factor, edit.prior * factor))
        yield from product(ranked[True], ranked[False])


def _cells(without: Sequence[float], told: Sequence[float]) -> str:
    return " | ".join(f"{one:.2f} | {other:.2f}" for one, other in zip(without, told, strict=True))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _search(runs: Path, task: str, seed: int, budget: int, memory: Path | None = None) -> Path:
    run = _folder(runs, task, seed, budget, "-told" if memory else "")
    if not (run / "best" / "answer.json").exists():
        words = ["search", task, "--device", "model", "--workers", "1", "--out", str(run)]
        words += ["--budget", str(budget), "--seed", str(seed), "--memory", str(memory or "off")]
        if (run / "journal.jsonl").exists():
            words = ["resume", str(run)]
        subprocess.run([sys.executable, "-m", "mctskernel", *words], check=True, stdout=subprocess.DEVNULL)
    return run


def _folder(runs: Path, task: str, seed: int, budget: int, kind: str = "") -> Path:
    return runs / f"{task}-{seed}-{budget}{kind}"


def _snapshot_file(runs: Path, task: str, seed: int) -> Path:
    return runs / f"without-{task}-{seed}.json"


def _snapshot(snapshot: Path, runs: Sequence[Path]) -> Path:
    with open_memory(snapshot.with_suffix(".sqlite")) as memory:
        for run in runs:
            memory.remember(open_run(run))
        snapshot.write_text(encode_snapshot(memory.everything()))
    return snapshot


if __name__ == "__main__":
    main()
