"""A Markdown table of finished runs, and the same as JSON.

python -m mctskernel.experiments.summarise_runs RUN ... [--json FILE]
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click
import msgspec

from mctskernel.experiments.records.provenance import write_result
from mctskernel.report.view import View, load_view
from mctskernel.tree.node import Tree

CHECKPOINTS = (10, 20, 40)
"""Evaluations after which the best speed-up so far is told."""


class Summary(msgspec.Struct, frozen=True):
    """A run in one line; times in seconds. `speedups_after` are the best so far, by the number of evaluations."""

    task: str
    device: str
    numbers: str
    seed: int
    evaluations: int
    outcomes: dict[str, int]
    start_seconds: float
    best_seconds: float
    speedup: float
    held_out_checks: int
    seconds_per_candidate: float
    path: list[str]
    fingerprint: dict[str, str]
    language: str = ""
    strategy: str = ""
    speedups_after: tuple[tuple[int, float], ...] = ()


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the same there.")
def main(runs: tuple[Path, ...], file: Path | None) -> None:
    """Summarise finished RUNS."""
    summaries = [summarise(load_view(run)) for run in runs]
    headings = (
        "task",
        "strategy",
        "start, us",
        "best, us",
        f"speed-up after {' / '.join(map(str, CHECKPOINTS))}",
        "speed-up",
        "evaluations",
        "s a candidate, median",
        "best path",
    )
    print(f"| {' | '.join(headings)} |")
    print("|---" * len(headings) + "|")
    for each in summaries:
        after = " / ".join(f"{speedup:.2f}x" for _, speedup in each.speedups_after)
        times = (
            f"{each.start_seconds * 1e6:.1f} | {each.best_seconds * 1e6:.1f} | {after} | {each.speedup:.2f}x"
        )
        cost = f"{each.evaluations} | {each.seconds_per_candidate:.2f}"
        print(
            f"| {each.task} ({each.language}) | {each.strategy} | {times} | {cost} | {'; '.join(each.path)} |"
        )
    first = summaries[0]
    print(f"\n{first.numbers}, {first.device}; {', '.join(f'{k} {v}' for k, v in first.fingerprint.items())}")
    if file is not None:
        write_result(file, summaries)


def summarise(view: View) -> Summary:
    """One run; its search must have stopped."""
    steps = view.steps
    evaluations = [node.evaluation for node in view.tree.nodes if node.evaluation is not None]
    return Summary(
        task=view.manifest.configuration.task,
        device=view.device,
        numbers=str(view.evaluation(view.best.id).source),
        seed=view.manifest.configuration.seed,
        evaluations=view.tree.evaluations,
        outcomes=view.outcomes,
        start_seconds=steps[0].seconds or 0.0,
        best_seconds=steps[-1].seconds or 0.0,
        speedup=steps[-1].speedup,
        held_out_checks=len(view.answer.checks) if view.answer else 0,
        seconds_per_candidate=statistics.median(each.cost_seconds for each in evaluations),
        path=[step.edit.title for step in steps if step.edit],
        fingerprint=view.manifest.fingerprint,
        language=str(view.manifest.configuration.language),
        strategy=view.manifest.configuration.policy.strategy,
        speedups_after=_speedups_after(view.tree),
    )


def _speedups_after(tree: Tree) -> tuple[tuple[int, float], ...]:
    found = [
        node.score.speedup for number in tree.evaluated if (node := tree.nodes[number]).score is not None
    ]
    return tuple((count, max(found[:count])) for count in CHECKPOINTS if count <= len(found))


if __name__ == "__main__":
    main()
