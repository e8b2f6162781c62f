"""Whether the change of a counter in a step predicts the gain of the step, and of the steps after it.

    python -m mctskernel.experiments.counter_evidence RUN|FOLDER... --out counter_evidence.md

Each RUN is a finished search, each FOLDER one of several. A step leads from a kernel to one made of it by an edit. A
proxy says of a kernel's counters what is bad about it, as one number that doesn't hold the kernel's time; a step
relieves a proxy by as much as the number falls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from mctskernel.core.edit import Category
from mctskernel.core.evaluation import Evaluation, Source
from mctskernel.core.task import Array
from mctskernel.experiments.results import clustered_mean, interval_text, page, table
from mctskernel.profiling import counters as names
from mctskernel.profiling.diagnosis import diagnose_counters
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.reward import first_bottleneck_relief, is_eligible
from mctskernel.report.resampling import Estimate, holm, ranks, sign_flip_p
from mctskernel.report.view import load_view
from mctskernel.run import RunError, RunFolder, write_text
from mctskernel.tree.journal import JournalError
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import run_seconds

FEWEST = 10
"""Steps of a search that say anything."""

FEWEST_TASKS = 3
"""Tasks from which on a correlation is reported."""

FEWEST_STEPS = 20
"""Steps of a category that has a row."""

SIGNIFICANT = 0.05

TIED = math.log1p(NOISE)
"""Gains that mean nothing, either way."""


@dataclass(frozen=True)
class Step:
    """A kernel and one made of it by an edit, both right and timed.

    `search` is the run, `task` what it is of, `source` where its numbers come from, `category` that of the edit.
    `seconds` are the child's, `gain` is the logarithm of the parent's over them. `ahead` is the logarithm of the
    child's time over the best of its `after` descendants, above 0 where one was faster; 0 where there is none.
    `reliefs` are by proxy, `moves` by counter.
    """

    search: str
    task: str
    source: Source
    category: Category
    seconds: float
    gain: float
    ahead: float
    after: int
    reliefs: Mapping[str, float]
    moves: Mapping[str, float]


@dataclass(frozen=True)
class Question:
    """What is predicted of steps, given what, and of which steps."""

    text: str
    outcome: Callable[[Step], float]
    given: Callable[[Step], tuple[float, ...]]
    concerns: Callable[[Step], bool] = lambda _: True


GAIN = Question(
    "the step's own gain, given the parent's time",
    lambda step: step.gain,
    lambda step: (math.log(step.seconds) + step.gain,),
)
OWN_GAIN = replace(GAIN, given=lambda _: ())
AHEAD = Question(
    "the gain of the best descendant over the child, given the child's time and how many descended",
    lambda step: step.ahead,
    lambda step: (math.log(step.seconds), math.log(step.after)),
    lambda step: step.after > 1,
)


@dataclass(frozen=True)
class Evidence:
    """What the relief of a proxy says of an outcome, given the rest.

    `correlation` is the partial rank correlation within searches, a mean over tasks; `p` is of sign flips over tasks
    and `adjusted` by Holm over the whole table.
    """

    question: str
    proxy: str
    steps: int
    tasks: int
    correlation: Estimate
    p: float
    adjusted: float = 1.0

    @property
    def supported(self) -> bool:
        """Whether a greater relief goes with a greater outcome, by more than chance."""
        return self.adjusted < SIGNIFICANT and self.correlation.mean > 0.0


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
    text = document(steps)
    write_text(out, text + "\n")
    click.echo(text)


def document(steps: Sequence[Step]) -> str:
    """Make the page."""
    tasks = sorted({step.task for step in steps})
    lead = (
        f"{len(steps)} steps from a kernel to one made of it by an edit, both right and timed, in "
        f"{len({step.search for step in steps})} searches of {len(tasks)} tasks: {', '.join(tasks)}. The numbers are "
        f"{' or '.join(sorted({step.source for step in steps}))}. Intervals are at "
        "95 %, from drawing whole tasks again."
    )
    found = evidence(steps)
    blocks = []
    for question in (GAIN, AHEAD):
        rows = [each for each in found if each.question == question.text]
        blocks += [f"## Does a relief predict {question.text}?", _evidence_table(rows)]
    return page(
        "Counters as evidence",
        lead,
        "## What edits did, by category",
        "Factors are means over tasks of the median of their steps: of the time, parent over child (above 1 is "
        "faster); of counters, child over parent. `faster` and `slower` are steps that changed the time by more than "
        "the noise.",
        _category_table(steps),
        "## How counters went with the gain",
        "The rank correlation of the logarithm of child over parent with that of the speed-up, within searches, as a "
        "mean over tasks.",
        _move_table(steps),
        *blocks,
        "`correlation` is the partial rank correlation within searches, a mean over tasks; `p` counts sign flips over "
        "tasks, `Holm` raises it for all rows of both questions. `supported` needs a positive correlation and Holm "
        "below 0.05.",
    )


def evidence(steps: Sequence[Step]) -> list[Evidence]:
    """What each proxy says of each question; proxies that too few tasks know are left out."""
    found = []
    for question in (GAIN, AHEAD):
        for proxy in PROXIES:
            concerned = [step for step in steps if proxy in step.reliefs and question.concerns(step)]
            reliefs_of = [step.reliefs[proxy] for step in concerned]
            by_task = correlations(concerned, reliefs_of, question)
            if len(by_task) >= FEWEST_TASKS:
                values = list(by_task.values())
                mean, p = clustered_mean(values, list(by_task)), sign_flip_p(np.array(values))
                found.append(Evidence(question.text, proxy, len(concerned), len(by_task), mean, p))
    adjusted = holm([each.p for each in found])
    return [replace(each, adjusted=p) for each, p in zip(found, adjusted, strict=True)]


def correlations(steps: Sequence[Step], values: Sequence[float], question: Question) -> dict[str, float]:
    """By task: the mean partial rank correlation of its searches that have enough steps, weighted by these."""
    searches: dict[str, list[tuple[float, ...]]] = {}
    tasks: dict[str, str] = {}
    for step, value in zip(steps, values, strict=True):
        row = (value, question.outcome(step), *question.given(step))
        searches.setdefault(step.search, []).append(row)
        tasks[step.search] = step.task
    found: dict[str, list[tuple[float, int]]] = {}
    for search, rows in searches.items():
        columns = np.array(rows)
        correlation = partial_rank_correlation(columns[:, 0], columns[:, 1], columns[:, 2:])
        if correlation is not None:
            found.setdefault(tasks[search], []).append((correlation, len(rows)))
    return {
        task: float(np.average([each for each, _ in pairs], weights=[count for _, count in pairs]))
        for task, pairs in found.items()
    }


def partial_rank_correlation(first: Array, second: Array, given: Array) -> float | None:
    """Spearman's correlation of two columns when what `given` says of both is taken away, by ranks.

    None where there are too few rows, or nothing of one of them is left. Source: Kendall, "Partial rank correlation",
    1942; ranks are regressed linearly.
    """
    if len(first) < max(FEWEST, given.shape[1] + 3):
        return None
    known = np.column_stack([np.ones(len(first)), *(ranks(column) for column in given.T)])
    one, other = (
        ranks(each) - known @ np.linalg.lstsq(known, ranks(each), rcond=None)[0] for each in (first, second)
    )
    # What is left of ranks that others explain is rounding.
    if min(one @ one, other @ other) <= 1e-9:
        return None
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def _category_table(steps: Sequence[Step]) -> str:
    rows = []
    for category, count in Counter(step.category for step in steps).most_common():
        if count < FEWEST_STEPS:
            continue
        members = [step for step in steps if step.category is category]
        gains = np.array([step.gain for step in members])
        factors = []
        for name in SHOWN:
            moved = [(step.task, step.moves[name]) for step in members if name in step.moves]
            factors.append(f"{_factor(moved).mean:.2f}" if len(moved) >= FEWEST_STEPS else "")
        rows.append(
            [
                str(category),
                str(count),
                str(len({step.task for step in members})),
                interval_text(_factor([(step.task, step.gain) for step in members]), ".3f"),
                f"{np.mean(gains > TIED):.0%}",
                f"{np.mean(gains < -TIED):.0%}",
                *factors,
            ]
        )
    return table(["category", "steps", "tasks", "speed-up", "faster", "slower", *SHOWN], rows)


def _factor(pairs: Iterable[tuple[str, float]]) -> Estimate:
    """The exponential of the mean over tasks of the median of their logarithms."""
    by_task: dict[str, list[float]] = {}
    for task, logarithm in pairs:
        by_task.setdefault(task, []).append(logarithm)
    found = clustered_mean([float(np.median(each)) for each in by_task.values()], list(by_task))
    return Estimate(*map(math.exp, (found.mean, found.low, found.high)))


def _move_table(steps: Sequence[Step]) -> str:
    rows = []
    for name in MOVED:
        moved = [step for step in steps if name in step.moves]
        by_task = correlations(moved, [step.moves[name] for step in moved], OWN_GAIN)
        if len(by_task) >= FEWEST_TASKS:
            rows.append((name, moved, clustered_mean(list(by_task.values()), list(by_task)), len(by_task)))
    return table(
        ["counter", "steps", "tasks", "correlation with the gain"],
        [
            [name, str(len(moved)), str(tasks), interval_text(mean, "+.2f")]
            for name, moved, mean, tasks in sorted(rows, key=lambda row: row[2].mean)
        ],
    )


def _evidence_table(rows: Sequence[Evidence]) -> str:
    return table(
        ["relief of", "steps", "tasks", "correlation", "p", "Holm", "supported"],
        [
            [
                row.proxy,
                str(row.steps),
                str(row.tasks),
                interval_text(row.correlation, "+.2f"),
                f"{row.p:.4f}",
                f"{row.adjusted:.3f}",
                "yes" if row.supported else "no",
            ]
            for row in rows
        ],
    )


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
    evaluations = {node.id: node.evaluation for node in tree.nodes if node.evaluation is not None}
    after = _times_after(tree, seconds)
    configuration = view.manifest.configuration
    name = Path(configuration.task).name
    for number, time in seconds.items():
        node = tree.nodes[number]
        if node.parent is None or node.edit is None or node.parent not in seconds:
            continue
        parent = tree.nodes[node.parent]
        before, evaluation = evaluations[node.parent], evaluations[number]
        yield Step(
            search=f"{name}-{configuration.language}-{view.manifest.created}",
            task=name,
            source=evaluation.source,
            category=parent.edits[node.edit].category,
            seconds=time,
            gain=math.log(seconds[parent.id] / time),
            ahead=math.log(time / min(after[number], default=time)),
            after=len(after[number]),
            reliefs=reliefs(before, evaluation, compulsory),
            moves=moves(before, evaluation),
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
