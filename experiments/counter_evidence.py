"""Whether the change of a counter in a step predicts the gain of the step, and of the steps after it.

    python -m mctskernel.experiments.counter_evidence RUN|FOLDER... --out counter_evidence.json

Each RUN is a finished search, each FOLDER one of several. A step leads from a kernel to one made
of it by an edit. A proxy says of a kernel's counters what is bad about it, as one number that doesn't hold the kernel's
time; a step relieves a proxy by as much as the number falls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.task import Array
from mctskernel.experiments.results import Interval, clustered_mean, interval_text, page, table, write_result
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import diagnose_counters
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.reward import first_bottleneck_relief, is_eligible
from mctskernel.report.resampling import holm, ranks, sign_flip_p
from mctskernel.report.view import load_view
from mctskernel.run import RunError, RunFolder
from mctskernel.tree.journal import JournalError
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import run_seconds

DIGITS = 5
"""Decimals of a step's numbers."""

FEWEST = 10
"""Steps of a search that say anything."""

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
    asked: Callable[[Step], bool] = lambda step: step.after > 1


def _ahead(step: Step) -> float:
    return step.ahead or 0.0


def _time_and_count(step: Step) -> tuple[float, ...]:
    return math.log(step.seconds), math.log(step.after)


GAIN = Question(
    "the step's own gain, given the parent's time",
    lambda step: step.gain,
    lambda step: (math.log(step.seconds) + step.gain,),
    lambda _: True,
)
AHEAD = Question(
    "the gain of the best descendant over the child, given the child's time and how many descended",
    _ahead,
    _time_and_count,
)
TIED_AHEAD = Question(
    "the gain of the best descendant where the step itself neither gained nor lost",
    _ahead,
    _time_and_count,
    lambda step: step.after > 1 and abs(step.gain) <= TIED,
)
QUESTIONS = (GAIN, AHEAD, TIED_AHEAD)


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
    except (RunError, JournalError) as error:
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
        f"searches of {len(report.tasks)} tasks: {', '.join(report.tasks)}. The numbers are "
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
    found = by_cluster(_groups(moved, lambda step: step.moves[name], lambda step: step.gain, lambda _: ()))
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


@dataclass(frozen=True)
class Group:
    """Observations that can be compared with each other: of `proxy`, `outcome`, and the columns of `given`.

    Groups of the same `cluster` may depend on each other.
    """

    cluster: str
    proxy: Array
    outcome: Array
    given: Array


def partial_rank_correlation(group: Group) -> float | None:
    """Spearman's correlation of proxy and outcome when what `given` says of both is taken away, by ranks.

    None where there are too few observations, or nothing of the proxy or the outcome is left. Source: Kendall,
    "Partial rank correlation", 1942; ranks are regressed linearly.
    """
    if len(group.outcome) < max(FEWEST, group.given.shape[1] + 3):
        return None
    given = np.column_stack([np.ones(len(group.outcome)), *(ranks(column) for column in group.given.T)])
    first, second = (_residuals(ranks(each), given) for each in (group.proxy, group.outcome))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    # What is left of ranks that others explain is rounding.
    return float(first @ second) / scale if min(first @ first, second @ second) > 1e-9 else None


def by_cluster(groups: Sequence[Group]) -> dict[str, float]:
    """The mean partial rank correlation of each cluster's groups, weighted by their observations."""
    found: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        correlation = partial_rank_correlation(group)
        if correlation is not None:
            found.setdefault(group.cluster, []).append((correlation, len(group.outcome)))
    return {
        cluster: float(np.average([each for each, _ in pairs], weights=[count for _, count in pairs]))
        for cluster, pairs in found.items()
    }


def held_out_gains(groups: Sequence[Group]) -> Mapping[str, float]:
    """By cluster: the share of the squared error that knowing the proxy takes away where it was not fitted.

    Outcomes are predicted linearly from what is given, with and without the proxy, by what was fitted on all other
    clusters. All columns are taken from their group's mean, since only kernels of one search compete, and outcomes are
    divided by their cluster's standard deviation. Below 0 where knowing it does harm. Clusters whose proxy or outcome
    never varies have no share.
    """
    clusters = {
        group.cluster: _pooled([each for each in groups if each.cluster == group.cluster]) for group in groups
    }
    clusters = {name: each for name, each in clusters.items() if np.any(each.proxy) and np.any(each.outcome)}
    gains = {}
    for name, held_out in clusters.items():
        others = [each for other, each in clusters.items() if other != name]
        if not others:
            return {}
        outcome = np.concatenate([each.outcome for each in others])
        errors = []
        for columns in (lambda each: each.given, lambda each: np.column_stack([each.given, each.proxy])):
            fitted = np.linalg.lstsq(np.concatenate([columns(each) for each in others]), outcome, rcond=None)[
                0
            ]
            residuals = held_out.outcome - columns(held_out) @ fitted
            errors.append(float(residuals @ residuals))
        gains[name] = (errors[0] - errors[1]) / errors[0]
    return gains


def _pooled(groups: Sequence[Group]) -> Group:
    """The groups of a cluster as one, each column taken from its group's mean."""
    outcome = np.concatenate([each.outcome - each.outcome.mean() for each in groups])
    spread = float(outcome.std())
    return Group(
        groups[0].cluster,
        np.concatenate([each.proxy - each.proxy.mean() for each in groups]),
        outcome / spread if spread else outcome,
        np.concatenate([each.given - each.given.mean(axis=0) for each in groups]),
    )


def _residuals(values: Array, given: Array) -> Array:
    return np.asarray(values - given @ np.linalg.lstsq(given, values, rcond=None)[0])


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


class Step(msgspec.Struct, frozen=True):
    """A kernel and one made of it by an edit, both right and timed.

    `search` is the run, `task` what it is of, `source` where its numbers come from, `category` that of the edit.
    `seconds` are the child's, `gain` the logarithm of the parent's over them. `ahead` is the logarithm of the child's
    time over the best of its `after` descendants, above 0 where one was faster; None where there is none. `reliefs`
    are by proxy, `moves` by counter.
    """

    search: str
    task: str
    source: Source
    category: Category
    seconds: float
    gain: float
    ahead: float | None
    after: int
    reliefs: dict[str, float]
    moves: dict[str, float]


def steps_of(folder: Path) -> Iterator[Step]:
    """The steps of a run, or of all runs in a folder. Raises RunError and JournalError."""
    if not RunFolder(folder).manifest.exists():
        for each in sorted(path for path in folder.iterdir() if path.is_dir()):
            yield from steps_of(each)
        return
    view = load_view(folder)
    tree, task = view.tree, view.folder.load_task()
    compulsory = task.compulsory_bytes(task.search_shapes[0])
    seconds = {node.id: time for node in tree.nodes if (time := _seconds(node.evaluation)) is not None}
    after = _times_after(tree, seconds)
    configuration = view.manifest.configuration
    name = Path(configuration.task).name
    for number, time in seconds.items():
        node = tree.nodes[number]
        if node.parent is None or node.edit is None or node.parent not in seconds:
            continue
        parent = tree.nodes[node.parent]
        before, evaluation = parent.evaluation, node.evaluation
        assert before is not None and evaluation is not None  # noqa: S101 - both have a time
        yield Step(
            search=f"{name}-{configuration.language}-{view.manifest.created}",
            task=name,
            source=evaluation.source,
            category=parent.edits[node.edit].category,
            seconds=time,
            gain=round(math.log(seconds[parent.id] / time), DIGITS),
            ahead=round(math.log(time / min(after[number])), DIGITS) if after[number] else None,
            after=len(after[number]),
            reliefs=_rounded(reliefs(before, evaluation, compulsory)),
            moves=_rounded(moves(before, evaluation)),
        )


def _times_after(tree: Tree, seconds: Mapping[int, float]) -> dict[int, list[float]]:
    """The times of the descendants of each node. Parents come before their children."""
    found: dict[int, list[float]] = {node.id: [] for node in tree.nodes}
    for node in reversed(tree.nodes):
        if node.parent is not None:
            own = [seconds[node.id]] if node.id in seconds else []
            found[node.parent] += [*own, *found[node.id]]
    return found


def _seconds(evaluation: Evaluation | None) -> float | None:
    """The whole plan's seconds of a kernel that may be an answer."""
    return run_seconds(evaluation) if evaluation is not None and is_eligible(evaluation) else None


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in values.items()}


Counters = Mapping[str, float]

STALLS = (
    names.STALL_LONG_SCOREBOARD,
    names.STALL_BARRIER,
    names.STALL_SHORT_SCOREBOARD,
    names.STALL_LG_THROTTLE,
)

TENSOR_USED = 1.0
"""Percent of the tensor pipes' time above which a kernel counts as one that uses them."""

BOTTLENECK = "the parent's first bottleneck"
SPILLS = "register spills"


def traffic(counters: Counters, compulsory_bytes: int) -> float | None:
    """The logarithm of the bytes that cross DRAM's pins over those that have to; 0 where L2 kept some of them."""
    moved = counters.get(names.DRAM_BYTES) or counters.get(names.DRAM_READ, 0.0) + counters.get(
        names.DRAM_WRITE, 0.0
    )
    return math.log(max(moved / compulsory_bytes, 1.0)) if moved and compulsory_bytes else None


def sectors_per_request(counters: Counters, _: int) -> float | None:
    """The logarithm of sectors of 32 bytes a global load or store of a warp."""
    sectors, requests = (
        sum(counters.get(name, 0.0) for name in pair)
        for pair in (
            (names.LOAD_SECTORS, names.STORE_SECTORS),
            (names.LOAD_REQUESTS, names.STORE_REQUESTS),
        )
    )
    return math.log(sectors / requests) if sectors and requests else None


def bank_conflicts(counters: Counters, _: int) -> float | None:
    """The share of shared memory's cycles that are conflicts."""
    if names.SHARED_WAVEFRONTS not in counters or names.BANK_CONFLICTS not in counters:
        return None
    wavefronts = counters[names.SHARED_WAVEFRONTS]
    return min(counters[names.BANK_CONFLICTS] / wavefronts, 1.0) if wavefronts else 0.0


def exposed_latency(counters: Counters, _: int) -> float | None:
    """The share of the schedulers' cycles in which nothing is issued for warps wait for global memory."""
    stalled = sum(counters.get(name, 0.0) for name in STALLS)
    if names.ISSUE_ACTIVE not in counters or not stalled:
        return None
    idle = 1.0 - counters[names.ISSUE_ACTIVE] / 100.0
    return idle * counters.get(names.STALL_LONG_SCOREBOARD, 0.0) / stalled


def idle_tensor_pipes(counters: Counters, _: int) -> float | None:
    """The share of the time in which the tensor pipes stand still; nothing is known of a kernel without them."""
    busy = counters.get(names.TENSOR_BUSY, 0.0)
    return 1.0 - busy / 100.0 if busy >= TENSOR_USED else None


def tail(counters: Counters, _: int) -> float | None:
    """The share of the multiprocessors' time in which they have no work."""
    return 1.0 - counters[names.SM_ACTIVE] / 100.0 if names.SM_ACTIVE in counters else None


COUNTED: Mapping[str, Callable[[Counters, int], float | None]] = {
    "DRAM traffic above the compulsory": traffic,
    "sectors a request": sectors_per_request,
    "bank conflicts": bank_conflicts,
    "exposed latency": exposed_latency,
    "idle tensor pipes": idle_tensor_pipes,
    "tail": tail,
}
"""By the names that tables have. Each takes counters and the task's compulsory bytes."""

PROXIES = (BOTTLENECK, SPILLS, *COUNTED)


def reliefs(parent: Evaluation, child: Evaluation, compulsory_bytes: int) -> dict[str, float]:
    """What a step relieved, by proxy; below 0 where it made it worse. A proxy that one of the two lacks is left out.

    Of the parent's first bottleneck it is the fraction that is gone, from 0 to 1, as the reward has it; of spills it
    is 1 where they went, -1 where they came.
    """
    found = {SPILLS: float(_spills(parent) - _spills(child))}
    if parent.counters and child.counters:
        before, after = (
            replace(each, diagnosis=diagnose_counters(each.counters)) for each in (parent, child)
        )
        found[BOTTLENECK] = first_bottleneck_relief(after, before)
    for name, badness in COUNTED.items():
        values = [badness(each.counters, compulsory_bytes) for each in (parent, child)]
        if values[0] is not None and values[1] is not None:
            found[name] = values[0] - values[1]
    return found


MOVED = {
    "DRAM bytes": names.DRAM_BYTES,
    "L2 sectors": names.L2_SECTORS,
    "load sectors": names.LOAD_SECTORS,
    "sectors a load": names.SECTORS_PER_LOAD,
    "shared wavefronts": names.SHARED_WAVEFRONTS,
    "bank conflicts": names.BANK_CONFLICTS,
    "instructions": names.INSTRUCTIONS,
    "issue active": names.ISSUE_ACTIVE,
    "warps active": names.WARPS_ACTIVE,
    "tensor pipes busy": names.TENSOR_BUSY,
    "waits for global memory": names.STALL_LONG_SCOREBOARD,
    "waits at barriers": names.STALL_BARRIER,
    "SM active": names.SM_ACTIVE,
}
"""Counters whose ratio child over parent is reported by category of edit."""


def moves(parent: Evaluation, child: Evaluation) -> dict[str, float]:
    """The logarithm of child over parent of each counter that neither of them has at 0."""
    return {
        label: math.log(child.counters[name] / parent.counters[name])
        for label, name in MOVED.items()
        if parent.counters.get(name, 0.0) > 0 and child.counters.get(name, 0.0) > 0
    }


def _spills(evaluation: Evaluation) -> bool:
    return any(each.spill_store_bytes or each.spill_load_bytes for each in evaluation.resources)


if __name__ == "__main__":
    main()
