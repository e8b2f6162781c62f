"""Whether what counters say of a step predicts what the step gains, and what comes after it.

    python -m mctskernel.experiments.counter_evidence RUN|FOLDER... --out docs/results/counter_evidence_h100.json
    python -m mctskernel.experiments.counter_evidence --steps FILE.jsonl.xz --out FILE.json

Each RUN is a finished search, each FOLDER one of variants (docs/model_benchmark.md has the form) or of several of
either. The steps that they are made of are written beside the result, which can be made of them again with --steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.experiments.counters.partial_ranks import FEWEST, Group, by_cluster, held_out_gains
from mctskernel.experiments.counters.proxies import MOVED, PROXIES
from mctskernel.experiments.counters.steps import Step, read_steps, steps_of, write_steps
from mctskernel.experiments.records.cluster_bootstrap import Interval, clustered_mean
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.guardrails import NOISE
from mctskernel.report.resampling import holm, sign_flip_p
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError
from mctskernel.variants import VariantError

FEWEST_TASKS = 3
"""Over which a correlation is told."""

FEWEST_STEPS = 20
"""Of a category that has a row."""

SIGNIFICANT = 0.05

TIED = math.log1p(NOISE)
"""Gains that mean nothing, either way."""


class CategoryRow(msgspec.Struct, frozen=True):
    """What edits of a category did: factors of time and counters, as means over tasks of the median of their steps.

    `speedup` is the parent's time over the child's, `moves` child over parent, with 95 % intervals over tasks.
    `faster` and `slower` are the shares of steps that changed the time by more than the noise.
    """

    category: str
    steps: int
    tasks: int
    speedup: Interval
    faster: float
    slower: float
    moves: dict[str, Interval]


class Evidence(msgspec.Struct, frozen=True):
    """What the relief of a proxy says of an outcome, given the rest.

    `correlation` is the partial rank correlation within searches, a mean over tasks; `p` is of sign flips over tasks
    and `adjusted` by Holm over the whole table. `held_out` is the share of the squared error that the proxy takes away
    on tasks that were not fitted. `supported` says that all of them say so.
    """

    question: str
    proxy: str
    steps: int
    tasks: int
    correlation: Interval
    p: float
    adjusted: float
    held_out: Interval | None
    supported: bool


class MoveRow(msgspec.Struct, frozen=True):
    """How a counter's move goes with the gain, within searches: a rank correlation, as a mean over tasks."""

    counter: str
    steps: int
    tasks: int
    correlation: Interval


class Report(msgspec.Struct, frozen=True):
    """Everything, of so many searches; `sources` say where the numbers of steps come from."""

    searches: int
    sources: list[str]
    tasks: list[str]
    steps: int
    categories: list[CategoryRow]
    moves: list[MoveRow]
    evidence: list[Evidence]


@dataclass(frozen=True)
class Question:
    """What is predicted of steps, from what, and of which steps."""

    text: str
    outcome: Callable[[Step], float]
    given: Callable[[Step], tuple[float, ...]]
    asked: Callable[[Step], bool]


def _gain(step: Step) -> float:
    return step.gain


def _ahead(step: Step) -> float:
    return step.ahead or 0.0


def _parents_time(step: Step) -> tuple[float, ...]:
    return (math.log(step.seconds) + step.gain,)


def _time_and_count(step: Step) -> tuple[float, ...]:
    return math.log(step.seconds), math.log(step.after)


def _went_on(step: Step) -> bool:
    return step.grown and step.after > 1


GAIN = Question("the step's own gain, given the parent's time", _gain, _parents_time, lambda _: True)
AHEAD = Question(
    "the gain of the best descendant over the child, given the child's time and how many descended",
    _ahead,
    _time_and_count,
    _went_on,
)
TIED_AHEAD = Question(
    "the gain of the best descendant where the step itself neither gained nor lost",
    _ahead,
    _time_and_count,
    lambda step: _went_on(step) and abs(step.gain) <= TIED,
)
NEAR = Question(
    "the gain of the best variant near the child in its family, given its time and how many are near",
    _ahead,
    _time_and_count,
    lambda step: not step.grown and step.after > 1,
)
QUESTIONS = (GAIN, AHEAD, TIED_AHEAD, NEAR)


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--steps", "steps_file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Of before."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(folders: tuple[Path, ...], steps_file: Path | None, out: Path) -> None:
    """Read steps, weigh the evidence and write it."""
    if bool(folders) == bool(steps_file):
        raise click.UsageError("Give runs and folders of variants, or --steps with the steps of before.")
    try:
        steps = (
            read_steps(steps_file) if steps_file else [step for each in folders for step in steps_of(each)]
        )
    except (RunError, JournalError, VariantError) as error:
        raise click.ClickException(str(error)) from error
    if not steps:
        raise click.ClickException("No kernel was made of another one: there is no step.")
    if steps_file is None:
        write_steps(steps_beside(out), steps)
    report = weigh(steps)
    write_result(out, report)
    for each in report.evidence:
        click.echo(f"{each.proxy}, {each.question}: {each.correlation.mean:+.2f}, p {each.adjusted:.3f}")


def steps_beside(out: Path) -> Path:
    """Where the steps behind a result are."""
    return out.with_name(f"{out.stem}_steps.jsonl.xz")


def weigh(steps: Sequence[Step]) -> Report:
    """What steps say."""
    return Report(
        searches=len({step.search for step in steps}),
        sources=sorted({step.source for step in steps}),
        tasks=sorted({step.task for step in steps}),
        steps=len(steps),
        categories=_categories(steps),
        moves=[row for name in MOVED if (row := _move(steps, name)) is not None],
        evidence=_all_evidence(steps),
    )


def _categories(steps: Sequence[Step]) -> list[CategoryRow]:
    counts = Counter(step.category for step in steps)
    return [
        _category(category, [step for step in steps if step.category is category])
        for category, count in counts.most_common()
        if count >= FEWEST_STEPS
    ]


def _category(category: str, steps: Sequence[Step]) -> CategoryRow:
    gains = np.array([step.gain for step in steps])
    moved = {name: [(step.task, step.moves[name]) for step in steps if name in step.moves] for name in MOVED}
    return CategoryRow(
        str(category),
        len(steps),
        len({step.task for step in steps}),
        _factor([(step.task, step.gain) for step in steps]),
        float(np.mean(gains > TIED)),
        float(np.mean(gains < -TIED)),
        {name: _factor(pairs) for name, pairs in moved.items() if len(pairs) >= FEWEST_STEPS},
    )


def _factor(pairs: Iterable[tuple[str, float]]) -> Interval:
    """The exponential of the mean over tasks of the median of their logarithms."""
    by_task: dict[str, list[float]] = {}
    for task, logarithm in pairs:
        by_task.setdefault(task, []).append(logarithm)
    found = clustered_mean([float(np.median(each)) for each in by_task.values()], list(by_task))
    return Interval(math.exp(found.mean), math.exp(found.low), math.exp(found.high))


def _move(steps: Sequence[Step], name: str) -> MoveRow | None:
    moved = [step for step in steps if name in step.moves]
    found = by_cluster(_groups(moved, lambda step: step.moves[name], _gain, lambda _: ()))
    if len(found) < FEWEST_TASKS:
        return None
    return MoveRow(name, len(moved), len(found), clustered_mean(list(found.values()), list(found)))


def _all_evidence(steps: Sequence[Step]) -> list[Evidence]:
    found = [
        each
        for question in QUESTIONS
        for proxy in PROXIES
        if (each := _evidence(steps, question, proxy)) is not None
    ]
    adjusted = holm([each.p for each in found])
    return [
        msgspec.structs.replace(each, adjusted=p, supported=_supported(each, p))
        for each, p in zip(found, adjusted, strict=True)
    ]


def _evidence(steps: Sequence[Step], question: Question, proxy: str) -> Evidence | None:
    """What a proxy says; None where too few tasks say anything."""
    asked = [step for step in steps if proxy in step.reliefs and question.asked(step)]
    groups = _groups(asked, lambda step: step.reliefs[proxy], question.outcome, question.given)
    found = by_cluster(groups)
    if len(found) < FEWEST_TASKS:
        return None
    values = list(found.values())
    gains = held_out_gains(groups)
    return Evidence(
        question=question.text,
        proxy=proxy,
        steps=sum(len(group.outcome) for group in groups),
        tasks=len(found),
        correlation=clustered_mean(values, list(found)),
        p=sign_flip_p(np.array(values)),
        adjusted=1.0,
        held_out=clustered_mean(list(gains.values()), list(gains)) if gains else None,
        supported=False,
    )


def _supported(evidence: Evidence, adjusted: float) -> bool:
    helped = evidence.held_out is not None and evidence.held_out.low > 0.0
    return adjusted < SIGNIFICANT and evidence.correlation.mean > 0.0 and helped


def _groups(
    steps: Iterable[Step],
    proxy: Callable[[Step], float],
    outcome: Callable[[Step], float],
    given: Callable[[Step], tuple[float, ...]],
) -> list[Group]:
    """The steps of each search that has enough of them."""
    searches: dict[str, list[Step]] = {}
    for step in steps:
        searches.setdefault(step.search, []).append(step)
    return [
        Group(
            members[0].task,
            np.array([proxy(step) for step in members]),
            np.array([outcome(step) for step in members]),
            np.array([given(step) for step in members]).reshape(len(members), -1),
        )
        for members in searches.values()
        if len(members) >= FEWEST
    ]


def by_question(evidence: Iterable[Evidence]) -> Mapping[str, list[Evidence]]:
    """The evidence of each question, in order."""
    found: dict[str, list[Evidence]] = {}
    for each in evidence:
        found.setdefault(each.question, []).append(each)
    return found


if __name__ == "__main__":
    main()
