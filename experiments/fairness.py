"""How much GPUs of one kind differ on the same kernels: as they were measured, and beside the starting kernel.

    python -m mctskernel.experiments.fairness --gpus 0,1 --out docs/results/fairness_h200.json

Each GPU judges the starting kernel of some tasks and what the first rules make of it, at the same time as the others
and in several rounds. The difference between two GPUs is what would be taken for a difference between kernels; that
between two rounds on one GPU is what can't be told anyway. `--gpus 0,0` compares a GPU with itself.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

import mctskernel.tasks
from mctskernel.core.device import DeviceError, DeviceSpec
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.executor import Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import PatchError, apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors import open_executor
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.comparable import timings_beside
from mctskernel.profiling.gpu.state import GpuMonitor, StateUnavailableError
from mctskernel.profiling.reward import is_eligible

APART = 0.01
"""The least fraction by which two kernels must differ for their order to mean anything."""

LOOKS = 50
"""How often a GPU is asked for its state to find out what that costs."""


class Judged(msgspec.Struct, frozen=True):
    """A kernel on a GPU in one round: seconds of one run and of the starting kernel beside it, geometric means over the
    shapes, and the state that the GPU was in at the end."""

    task: str
    kernel: str
    gpu: str
    turn: int
    seconds: float
    baseline_seconds: float | None
    sm_mhz: int | None
    celsius: int | None
    watts: float | None
    dropped: int


class Difference(msgspec.Struct, frozen=True):
    """What the times of two GPUs, or of two rounds on one, differ by over some kernels, as fractions.

    `median` is signed, above 0 where the second one is slower; `most` is the largest of any kernel. `misplaced` are
    pairs of kernels, one on each, that come in another order than on the first alone, of `pairs`; those apart by less
    than `APART` aren't counted.
    """

    median: float
    most: float
    misplaced: int
    pairs: int


class Compared(msgspec.Struct, frozen=True):
    """A GPU against the first one on the kernels of a task: as measured, and beside the starting kernel.

    The same between the first round and the last one on the first GPU.
    """

    task: str
    gpu: str
    kernels: int
    measured: Difference
    beside: Difference
    again_measured: Difference
    again_beside: Difference


class Report(msgspec.Struct, frozen=True):
    """What was found. `read_us` and `glance_us` are what asking for a GPU's state takes, in microseconds."""

    gpus: tuple[str, ...]
    compared: tuple[Compared, ...]
    judged: tuple[Judged, ...]
    seconds: float
    read_us: float | None = None
    glance_us: float | None = None


Evaluations = Mapping[str, Sequence[Evaluation]]
"""Those of each kernel, one for each round."""


@click.command()
@click.option(
    "--gpus", default="0,1", show_default=True, help="Indices or UUIDs of the GPUs, the first one first."
)
@click.option("--tasks", default="softmax,matmul,sum", show_default=True, help="Built-in tasks.")
@click.option("--kernels", default=8, show_default=True, help="Kernels of each task.")
@click.option("--rounds", default=3, show_default=True, help="How often each GPU judges each of them.")
@click.option("--workers", default=2, show_default=True, help="Processes that compile, for each GPU.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the figures as JSON.")
def main(*, gpus: str, tasks: str, kernels: int, rounds: int, workers: int, out: Path | None) -> None:
    """Print how much GPUs of one kind differ on the same kernels."""
    began = time.perf_counter()
    wanted = gpus.split(",")
    compared: list[Compared] = []
    judged: list[Judged] = []
    uuids: tuple[str, ...] = ()
    for name in tasks.split(","):
        folder = Path(mctskernel.tasks.__file__).parent / name
        task = load_task(folder)
        with ExitStack() as stack:
            opened = [
                stack.enter_context(
                    open_executor(DeviceSpec("gpu", folder), workers, ExecutorOptions(gpus=(gpu,)))
                )
                for gpu in wanted
            ]
            uuids = tuple(each.fingerprint()["uuid"] for each in opened)
            found = in_rounds(opened, dict(first_edits(task, kernels)), rounds)
        judged += rows(task.name, wanted, found)
        compared += comparisons(task.name, wanted, found)
        click.echo(f"{name}: {len(complete(found))} kernels.", err=True)
    report = Report(uuids, tuple(compared), tuple(judged), time.perf_counter() - began)
    report = with_costs(report, uuids[0])
    if out is not None:
        write_result(out, report)
    click.echo(table(report))


def first_edits(task: Task, count: int) -> Iterator[tuple[str, Kernel]]:
    """The starting kernel and what the first rules make of it, by the titles of the edits."""
    start = task.starting_kernel
    request = ProposalRequest(task, start, Evaluation(Outcome.OK, Source.RECORDED))
    seen = {start.identity}
    yield "starting kernel", start
    for edit in RuleProposer().propose(request).edits:
        try:
            kernel = apply(start, edit)
        except PatchError:
            continue
        if kernel.identity not in seen and len(seen) < count:
            seen.add(kernel.identity)
            yield edit.title, kernel


def in_rounds(executors: Sequence[Executor], kernels: Mapping[str, Kernel], rounds: int) -> list[Evaluations]:
    """Each kernel judged by each executor, all executors at the same time; for each of them what it found."""
    found: list[dict[str, list[Evaluation]]] = [{name: [] for name in kernels} for _ in executors]
    for name, kernel in itertools.islice(itertools.cycle(kernels.items()), rounds * len(kernels)):
        for executor in executors:
            executor.submit(0, kernel)
        for executor, evaluations in zip(executors, found, strict=True):
            ((_, evaluation),) = executor.wait()
            evaluations[name].append(evaluation)
    return list(found)


def complete(found: Sequence[Evaluations]) -> list[str]:
    """The kernels that were right and timed every time."""
    return [name for name in found[0] if all(is_eligible(each) for on_gpu in found for each in on_gpu[name])]


def rows(task: str, gpus: Sequence[str], found: Sequence[Evaluations]) -> Iterator[Judged]:
    """What each GPU measured of each kernel in each round."""
    for name in complete(found):
        for gpu, on_gpu in zip(gpus, found, strict=True):
            for turn, evaluation in enumerate(on_gpu[name]):
                conditions = evaluation.timings[-1].conditions
                state = conditions.after if conditions else None
                baselines = [each.baseline_seconds for each in evaluation.timings if each.baseline_seconds]
                yield Judged(
                    task,
                    name,
                    gpu,
                    turn,
                    statistics.geometric_mean(each.seconds for each in evaluation.timings),
                    statistics.geometric_mean(baselines) if baselines else None,
                    state.sm_mhz if state else None,
                    state.celsius if state else None,
                    state.watts if state else None,
                    sum(each.conditions.dropped for each in evaluation.timings if each.conditions),
                )


def comparisons(task: str, gpus: Sequence[str], found: Sequence[Evaluations]) -> Iterator[Compared]:
    """Each GPU against the first one, by the last round of each, and the first one's rounds against each other."""
    names = complete(found)
    if len(names) < 2:
        raise click.ClickException(
            f"Of the kernels of '{task}' only {len(names)} were right and timed everywhere."
        )
    last = [[on_gpu[name][-1] for name in names] for on_gpu in found]
    earlier = [found[0][name][0] for name in names]
    for gpu, theirs in zip(gpus[1:], last[1:], strict=True):
        yield Compared(
            task,
            gpu,
            len(names),
            difference(last[0], theirs, measured),
            difference(last[0], theirs, beside),
            difference(earlier, last[0], measured),
            difference(earlier, last[0], beside),
        )


Time = Callable[[Evaluation, Evaluation], float]
"""Seconds of the first evaluation as they are to be compared with those of the second one."""


def measured(evaluation: Evaluation, _: Evaluation) -> float:
    """As they were measured."""
    return statistics.geometric_mean(timing.seconds for timing in evaluation.timings)


def beside(evaluation: Evaluation, reference: Evaluation) -> float:
    """As a search compares them."""
    return statistics.geometric_mean(timing.seconds for timing in timings_beside(evaluation, reference))


def difference(first: Sequence[Evaluation], second: Sequence[Evaluation], seconds: Time) -> Difference:
    """Between two GPUs or rounds that have judged the same kernels."""
    found = [
        seconds(theirs, ours) / measured(ours, ours) - 1 for ours, theirs in zip(first, second, strict=True)
    ]
    alone = [measured(each, each) for each in first]
    pairs = [
        (own, other)
        for own, other in itertools.permutations(range(len(first)), 2)
        if abs(alone[other] / alone[own] - 1) > APART
    ]
    misplaced = sum(
        (seconds(second[other], first[own]) < alone[own]) != (alone[other] < alone[own])
        for own, other in pairs
    )
    return Difference(statistics.median(found), max(map(abs, found)), misplaced, len(pairs))


def with_costs(report: Report, uuid: str) -> Report:
    """The report with what asking for a GPU's state takes, where it can be asked."""
    try:
        monitor = GpuMonitor(uuid)
    except StateUnavailableError as error:
        click.echo(str(error), err=True)
        return report
    return msgspec.structs.replace(
        report, read_us=_microseconds(monitor.read), glance_us=_microseconds(monitor.glance)
    )


def page(report: Report) -> str:
    """The comparisons, and what the GPUs were like meanwhile, as a page of Markdown."""
    return f"# GPUs of one kind on the same kernels\n\n{_EXPLANATION}\n\n{table(report)}\n"


def table(report: Report) -> str:
    """The same without a heading."""
    lines = [
        "| task | kernels | GPU | as measured: median, most | beside the starting kernel | misplaced pairs "
        "| one GPU again |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.task} | {each.kernels} | {each.gpu} | {_text(each.measured)} | {_text(each.beside)} "
        f"| {each.measured.misplaced} to {each.beside.misplaced} of {each.measured.pairs} "
        f"| {_text(each.again_measured)}; {_text(each.again_beside)} |"
        for each in report.compared
    ]
    return "\n".join((*lines, "", " ".join(_sentences(report))))


_EXPLANATION = """\
How far the times of a GPU lie from those of GPU 0 on the same kernels, over all kernels of a task: the median, and the
most of any kernel; as they were measured, and as a search compares them, beside the starting kernel. Pairs of kernels,
one on each GPU, are misplaced where they come in another order than on GPU 0 alone. The last column is GPU 0 against
itself, in its first and its last round."""


def _sentences(report: Report) -> Iterator[str]:
    for name, unit in (("sm_mhz", "MHz"), ("celsius", "C"), ("watts", "W")):
        said = [round(found) for each in report.judged if (found := getattr(each, name)) is not None]
        if said:
            low, high = min(said), max(said)
            yield f"{low} {unit}." if low == high else f"{low} to {high} {unit}."
    yield f"{sum(each.dropped for each in report.judged)} runs were made again."
    if report.read_us is not None and report.glance_us is not None:
        yield f"A GPU's state is read in {report.read_us:.0f} us, glanced at in {report.glance_us:.0f} us."


def _text(found: Difference) -> str:
    return f"{found.median:+.2%}, {found.most:.2%}"


def _microseconds(look: Callable[[], object]) -> float:
    taken = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        look()
        taken.append(time.perf_counter() - began)
    return 1e6 * statistics.median(taken)


if __name__ == "__main__":
    try:
        main()
    except DeviceError as error:
        raise SystemExit(str(error)) from error
