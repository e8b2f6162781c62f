"""Whether a weight on relieved bottlenecks in the reward helps: recorded runs searched again with each weight and none.

    python -m mctskernel.experiments.reward_value RUN|FOLDER... --out reward_value.json

Each RUN is a finished search whose kernels have counters, each FOLDER one of such. Nothing is built or run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.core.evaluation import Evaluation, Score
from mctskernel.core.kernel import Kernel
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.experiments.recorded_spaces import RecordedProposer, RecordedSpace, read_spaces
from mctskernel.experiments.results import cluster_means, clustered_mean, page, table, write_result
from mctskernel.experiments.simulated_search import grow
from mctskernel.profiling.diagnosis import diagnose_counters
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.reward import Reward, first_bottleneck_relief, time_alone
from mctskernel.report.resampling import holm, sign_flip_p
from mctskernel.run import RunError, RunFolder, read_manifest
from mctskernel.tree.journal import JournalError
from mctskernel.tree.policy import Policy
from mctskernel.tree.trajectory import run_seconds

FEWEST = 40
"""Kernels of a run that is searched again."""

CHECKPOINTS = (10, 20, 40)
"""Evaluations after which the best kernel is looked at."""

TIME_ALONE = "time alone"

WEIGHTS: Mapping[str, float] = {
    "a hundredth of the noise": 0.01 * math.log1p(NOISE),
    "a quarter of the noise": 0.25 * math.log1p(NOISE),
    "ten times the noise": 10.0 * math.log1p(NOISE),
}
"""Of the relief of the parent's first bottleneck, by what the table calls them."""

STRATEGY = "mcts"


class Trial(msgspec.Struct, frozen=True):
    """A search: the space's best time over the best so far, after each of `CHECKPOINTS`."""

    space: str
    task: str
    weight: str
    seed: int
    shares: tuple[float, ...]


class Report(msgspec.Struct, frozen=True):
    """All searches, and how they were made."""

    strategy: str
    seeds: int
    checkpoints: tuple[int, ...]
    weights: dict[str, float]
    trials: list[Trial]


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(folders: tuple[Path, ...], seeds: int, out: Path) -> None:
    """Search every space with every weight."""
    try:
        spaces = [space for each in folders for space in _spaces(each)]
    except (RunError, JournalError) as error:
        raise click.ClickException(str(error)) from error
    if not spaces:
        raise click.ClickException(f"No run has {FEWEST} kernels that were evaluated.")
    trials = []
    for number, (task, space) in enumerate(spaces, 1):
        click.echo(f"{number}/{len(spaces)}: {space.name}", err=True)
        trials += list(trials_of(task, space, range(seeds)))
    report = Report(STRATEGY, seeds, CHECKPOINTS, dict(WEIGHTS), trials)
    write_result(out, report)
    click.echo(document(report))


def with_relief(weight: float) -> Reward:
    """The time alone, and `weight` for relieving all of the parent's first bottleneck."""

    def reward(evaluation: Evaluation, parent: Evaluation | None, root: Evaluation) -> Score:
        score = time_alone(evaluation, parent, root)
        if parent is None or not evaluation.ok or evaluation.quarantine:
            return score
        earned = weight * first_bottleneck_relief(evaluation, parent)
        return Score(score.reward + earned, score.speedup, {**score.terms, "relief": earned})

    return reward


def trials_of(task: str, space: RecordedSpace, seeds: Iterable[int]) -> Iterator[Trial]:
    """The searches of a space by every weight, paired by seed."""
    optimum = min(space.seconds.values())
    rewards = {TIME_ALONE: time_alone, **{name: with_relief(weight) for name, weight in WEIGHTS.items()}}
    for seed in seeds:
        for name, reward in rewards.items():
            times = _times(space, seed, reward)
            best = np.minimum.accumulate(times)
            shares = tuple(round(optimum / float(best[min(at, len(best)) - 1]), 5) for at in CHECKPOINTS)
            yield Trial(space.name, task, name, seed, shares)


def document(report: Report) -> str:
    """Make the page: what each weight gained over none."""
    tasks = {trial.task for trial in report.trials}
    spaces = {trial.space for trial in report.trials}
    lead = (
        f"{len(spaces)} recorded searches of {len(tasks)} tasks, searched again by `{report.strategy}`, "
        f"{report.seeds} seeds each: the reward is the logarithm of the speed-up, and a weight times the relieved "
        "share of the parent's first bottleneck. Differences are of the share of the best kernel's speed reached, in "
        "percentage points, against time alone with the same seed; intervals at 95 % draw whole tasks again, `p` "
        "counts sign flips over tasks, `Holm` raises it for all rows."
    )
    rows = [
        _row(report, name, column) for name in report.weights for column in range(len(report.checkpoints))
    ]
    adjusted = holm([p for _, p in rows])
    cells = [[*cells, f"{each:.3f}"] for (cells, _), each in zip(rows, adjusted, strict=True)]
    columns = ["weight", "evaluations", "share", "against time alone", "better", "worse", "p", "Holm"]
    alone = [
        f"{at} evaluations: {np.mean([each.shares[column] for each in report.trials if each.weight == TIME_ALONE]):.3f}"
        for column, at in enumerate(report.checkpoints)
    ]
    return page(
        "The weight of relieved bottlenecks", lead, table(columns, cells), f"Time alone: {', '.join(alone)}."
    )


def _row(report: Report, weight: str, column: int) -> tuple[list[str], float]:
    alone = {(each.space, each.seed): each for each in report.trials if each.weight == TIME_ALONE}
    trials = [each for each in report.trials if each.weight == weight]
    differences = [each.shares[column] - alone[each.space, each.seed].shares[column] for each in trials]
    means = cluster_means(differences, [trial.task for trial in trials])
    found = clustered_mean(means.tolist(), list(map(str, range(len(means)))))
    p = sign_flip_p(means)
    return [
        weight,
        str(report.checkpoints[column]),
        f"{np.mean([each.shares[column] for each in trials]):.3f}",
        f"{100 * found.mean:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})",
        *(f"{np.mean([sign * each > 0 for each in differences]):.0%}" for sign in (1, -1)),
        f"{p:.3f}",
    ], p


def _spaces(folder: Path) -> Iterator[tuple[str, RecordedSpace]]:
    """The spaces of a run or of a folder of runs, with their tasks, as far as they are large enough."""
    if not RunFolder(folder).manifest.exists():
        for each in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from _spaces(each)
        return
    task = Path(read_manifest(RunFolder(folder)).configuration.task).name
    for space in read_spaces(folder):
        if len(space.seconds) >= FEWEST:
            yield task, diagnosed(space)


def diagnosed(space: RecordedSpace) -> RecordedSpace:
    """The space with what binds each kernel, by its counters."""
    evaluations = {
        identity: replace(each, diagnosis=diagnose_counters(each.counters) if each.counters else None)
        for identity, each in space.evaluations.items()
    }
    return replace(space, evaluations=evaluations)


def _times(space: RecordedSpace, seed: int, reward: Reward) -> list[float]:
    """The times of the kernels in the order in which a search came to them; infinity for a failure."""

    def look_up(kernel: Kernel) -> Evaluation:
        return space.evaluations[kernel.identity]

    tree, _ = grow(
        space.start(seed),
        task=space.task,
        policy=Policy(strategy=STRATEGY),
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=RecordedExecutor(look_up, {}),
        budget=max(CHECKPOINTS),
        reward=reward,
    )
    evaluations = [tree.nodes[node].evaluation for node in tree.evaluated]
    return [(run_seconds(each) if each is not None and each.ok else None) or math.inf for each in evaluations]


if __name__ == "__main__":
    main()
