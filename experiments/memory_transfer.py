"""Does what other tasks taught help a search? Each task searched without a memory, and with that of all the others.

    python -m mctskernel.experiments.memory_transfer --runs runs/transfer

Searches that are finished in the folder are not repeated. Prints a table in Markdown: the best speed-up after some
evaluations, the starting kernel's included, on the `model` device with one worker.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mctskernel.answer import believed_speedup
from mctskernel.memory import encode_snapshot, open_memory
from mctskernel.run import open_run
from mctskernel.tree.journal import read_tree

TASKS = ("softmax", "layernorm", "rmsnorm", "bias_gelu", "transpose")


@dataclass(frozen=True)
class Comparison:
    """The best speed-ups of a task after some evaluations, without and with a memory of the other tasks."""

    task: str
    seed: int
    without: tuple[float, ...]
    told: tuple[float, ...]


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


def compare(
    runs: Path, tasks: Sequence[str], seeds: Sequence[int], budget: int, moments: Sequence[int]
) -> Iterator[Comparison]:
    """Search every task with every seed, first without a memory, then with what the other tasks' searches taught."""
    for seed in seeds:
        alone = {task: _search(runs, task, seed, budget) for task in tasks}
        for task in tasks:
            others = [run for other, run in alone.items() if other != task]
            told = _search(runs, task, seed, budget, _snapshot(runs / f"without-{task}-{seed}", others))
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


def _cells(without: Sequence[float], told: Sequence[float]) -> str:
    return " | ".join(f"{one:.2f} | {other:.2f}" for one, other in zip(without, told, strict=True))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _search(runs: Path, task: str, seed: int, budget: int, memory: Path | None = None) -> Path:
    run = runs / f"{task}-{seed}-{budget}{'-told' if memory else ''}"
    if not (run / "best" / "answer.json").exists():
        words = ["search", task, "--device", "model", "--workers", "1", "--out", str(run)]
        words += ["--budget", str(budget), "--seed", str(seed), "--memory", str(memory or "off")]
        if (run / "journal.jsonl").exists():
            words = ["resume", str(run)]
        subprocess.run([sys.executable, "-m", "mctskernel", *words], check=True, stdout=subprocess.DEVNULL)
    return run


def _snapshot(name: Path, runs: Sequence[Path]) -> Path:
    with open_memory(name.with_suffix(".sqlite")) as memory:
        for run in runs:
            memory.remember(open_run(run))
        snapshot = name.with_suffix(".json")
        snapshot.write_text(encode_snapshot(memory.everything()))
    return snapshot


if __name__ == "__main__":
    main()
