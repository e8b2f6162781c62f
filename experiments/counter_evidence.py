"""Whether the change of a counter in a step predicts the gain of the step, and of the steps after it.

    python -m mctskernel.experiments.counter_evidence RUN|FOLDER... --out counter_evidence.json

Each RUN is a finished search, each FOLDER one of variants (docs/model_benchmark.md has the form), or a folder of
several of either. The tables are printed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.experiments.counter_steps import MOVED, PROXIES, Step, steps_of
from mctskernel.experiments.partial_ranks import FEWEST, Group, by_cluster, held_out_gains
from mctskernel.experiments.results import Interval, clustered_mean, interval_text, page, table, write_result
from mctskernel.experiments.variants import VariantError
from mctskernel.profiling.guardrails import NOISE
from mctskernel.report.resampling import holm, sign_flip_p
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError

FEWEST_TASKS = 3
"""Above which a correlation is reported."""

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


SHOWN = (
    "DRAM bytes",
    "L2 sectors",
    "sectors a load",
    "shared wavefronts",
    "instructions",
    "warps active",
    "waits for global memory",
    "waits at barriers",
)
"""Counters that have a column by category."""


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(folders: tuple[Path, ...], out: Path) -> None:
    """Read the steps of FOLDERS, test every proxy, and write and print the tables."""
    try:
        steps = [step for each in folders for step in steps_of(each)]
    except (RunError, JournalError, VariantError) as error:
        raise click.ClickException(str(error)) from error
    if not steps:
        raise click.ClickException("No kernel was made of another one: there is no step.")
    report = weigh(steps)
    write_result(out, report)
    click.echo(document(report))


def weigh(steps: Sequence[Step]) -> Report:
    """Compute all tables of steps."""
    return Report(
        searches=len({step.search for step in steps}),
        sources=sorted({step.source for step in steps}),
        tasks=sorted({step.task for step in steps}),
        steps=len(steps),
        categories=_categories(steps),
        moves=[row for name in MOVED if (row := _move(steps, name)) is not None],
        evidence=_all_evidence(steps),
    )


def document(report: Report) -> str:
    """Make the page."""
    lead = (
        f"{report.steps} steps from a kernel to one made of it by an edit, both right and timed, in {report.searches} "
        f"searches and families of {len(report.tasks)} tasks: {', '.join(report.tasks)}. The numbers are "
        f"{' or '.join(report.sources)}. Intervals are at 95 %, from drawing whole tasks again."
    )
    questions: dict[str, list[Evidence]] = {}
    for each in report.evidence:
        questions.setdefault(each.question, []).append(each)
    supported = []
    blocks = [
        "## What edits did, by category",
        _CATEGORIES,
        _category_table(report.categories),
        "## How counters went with the gain",
        _MOVES,
        _move_table(report.moves),
    ]
    for question, rows in questions.items():
        names = ", ".join(row.proxy for row in rows if row.supported)
        supported.append(f"- Supported as a predictor of {question}: the relief of {names or 'none'}.")
        blocks += [f"## Does a relief predict {question}?", _evidence_table(rows)]
    blocks += ["## What the columns mean", _COLUMNS]
    return page("Counters as evidence", lead, "\n".join(supported), *blocks)


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


_CATEGORIES = (
    "Factors are means over tasks of the median of their steps: of the time, parent over child (above 1 is faster); of "
    "counters, child over parent. `faster` and `slower` are steps that changed the time by more than the noise."
)

_MOVES = (
    "The rank correlation of the logarithm of child over parent with that of the speed-up, within searches, as a mean "
    "over tasks."
)

_COLUMNS = (
    "`correlation` is the partial rank correlation within searches, a mean over tasks; `p` counts sign flips over "
    "tasks, `Holm` raises it for all rows of all questions. `error taken away` is the share of the squared error of a "
    "linear prediction that knowing the relief takes away on tasks that were left out when it was fitted; below 0 it "
    "does harm. `supported` needs a positive correlation, Holm below 0.05, and an interval of the error taken away "
    "above 0."
)


def _category_table(rows: Sequence[CategoryRow]) -> str:
    return table(
        ["category", "steps", "tasks", "speed-up", "faster", "slower", *SHOWN],
        [
            [
                row.category,
                str(row.steps),
                str(row.tasks),
                interval_text(row.speedup, ".3f"),
                f"{row.faster:.0%}",
                f"{row.slower:.0%}",
                *(f"{row.moves[name].mean:.2f}" if name in row.moves else "" for name in SHOWN),
            ]
            for row in rows
        ],
    )


def _move_table(rows: Sequence[MoveRow]) -> str:
    return table(
        ["counter", "steps", "tasks", "correlation with the gain"],
        [
            [row.counter, str(row.steps), str(row.tasks), interval_text(row.correlation, "+.2f")]
            for row in sorted(rows, key=lambda row: row.correlation.mean)
        ],
    )


def _evidence_table(rows: Sequence[Evidence]) -> str:
    return table(
        ["relief of", "steps", "tasks", "correlation", "p", "Holm", "error taken away", "supported"],
        [
            [
                row.proxy,
                str(row.steps),
                str(row.tasks),
                interval_text(row.correlation, "+.2f"),
                f"{row.p:.4f}",
                f"{row.adjusted:.3f}",
                interval_text(row.held_out, "+.1%") if row.held_out else "",
                "yes" if row.supported else "no",
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
