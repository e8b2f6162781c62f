"""What more GPUs and other engines buy: evaluations a second, and the share of the optimum that as many of them find.

    python -m mctskernel.experiments.scaling --gpus 1,2 --engines local,ray --out FOLDER

Three things are measured, each left out where its number is 0 or nothing is given. *Throughput*: a fixed list of
kernels, which the rules make of a starting kernel, evaluated in full, for each engine, each set of counters and each
number of GPUs.
*Searches* of the task with as many evaluations for each number of GPUs. *Recorded spaces* with as many evaluations in
flight as those GPUs have, which needs no GPU and tells what it costs a search to decide before it knows. Every arm is a
process of its own, which sees the first GPUs of those that this one sees. On `--device model` a GPU is a worker.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from mctskernel.core.executor import ENGINES, CounterSet
from mctskernel.experiments.records.documents import Block, Document, Section, Table, Text, markdown
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.strategies.simulated_search import search as search_space
from mctskernel.experiments.strategies.traces import CHECKPOINTS
from mctskernel.experiments.suites.search_cost import search_cost
from mctskernel.experiments.throughput import Throughput
from mctskernel.profiling.spaces import read_space
from mctskernel.report.progress import moments
from mctskernel.report.view import load_view
from mctskernel.tree.journal import read_events
from mctskernel.tree.policy import Policy

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Arm(msgspec.Struct, frozen=True):
    """The throughput of an engine on so many GPUs that read a set of counters, or why there is none."""

    engine: str
    gpus: int
    throughput: Throughput | None = None
    problem: str = ""
    counters: CounterSet = CounterSet.ALL


class Searched(msgspec.Struct, frozen=True):
    """A search on so many GPUs: the best speed-up after its evaluations, which took `seconds`."""

    gpus: int
    seed: int
    evaluations: int
    seconds: float
    speedup: float


class InFlight(msgspec.Struct, frozen=True):
    """Searches of recorded spaces with so many evaluations in flight: mean share of the optimum by evaluations."""

    in_flight: int
    searches: int
    shares: dict[int, float]


class Report(msgspec.Struct, frozen=True):
    """Everything that was measured of one task, and on which device."""

    task: str
    device: str
    arms: list[Arm]
    searches: list[Searched]
    spaces: list[InFlight]


@click.command()
@click.option("--task", default="softmax", show_default=True)
@click.option("--gpus", default="1,2", show_default=True, help="Numbers of GPUs.")
@click.option("--engines", default="local", show_default=True, help=f"Of {', '.join(ENGINES)}.")
@click.option(
    "--counters", default=CounterSet.ALL.value, show_default=True, help=f"Of {', '.join(CounterSet)}."
)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option(
    "--kernels", type=click.IntRange(min=0), default=30, show_default=True, help="In the fixed list."
)
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Of that list.")
@click.option("--alone", type=click.IntRange(min=0), default=10, show_default=True, help="One at a time.")
@click.option("--searches", type=click.IntRange(min=0), default=2, show_default=True, help="Seeds.")
@click.option("--budget", type=click.IntRange(min=1), default=60, show_default=True, help="Of a search.")
@click.option("--spaces", type=click.Path(exists=True, path_type=Path), help="A folder of recorded spaces.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Of each space.")
@click.option(
    "--in-flight",
    default="1,5,8,14,26",
    show_default=True,
    help="In each space: 1, and those of 1, 2, 4, 8 GPUs.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A folder.")
def main(
    *,
    task: str,
    gpus: str,
    engines: str,
    counters: str,
    device: str,
    kernels: int,
    rounds: int,
    alone: int,
    searches: int,
    budget: int,
    spaces: Path | None,
    seeds: int,
    in_flight: str,
    out: Path,
) -> None:
    """Measure, print the tables, and write them with their numbers into a folder."""
    numbers = [int(each) for each in gpus.split(",")]
    out.mkdir(parents=True, exist_ok=True)
    words = ["--kernels", str(kernels), "--rounds", str(rounds), "--alone", str(alone), "--device", device]
    arms = [
        measure_arm(task, Arm(engine, number, counters=each), device, words)
        for each in map(CounterSet, counters.split(","))
        for number in numbers
        for engine in (engines.split(",") if kernels else ())
    ]
    searched = [
        measure_search(task, number, device, seed, budget) for seed in range(searches) for number in numbers
    ]
    recorded = list(measure_spaces(spaces, map(int, in_flight.split(",")), seeds)) if spaces else []
    report = Report(task, device, arms, searched, recorded)
    write_result(out / "scaling.json", report)
    text = page(report)
    (out / "scaling.md").write_text(text, encoding="utf-8")
    click.echo(text)


def measure_arm(task: str, wanted: Arm, device: str, words: Sequence[str]) -> Arm:
    """An arm with its throughput, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "throughput.json"
        module = "mctskernel.experiments.throughput"
        command = [sys.executable, "-m", module, task, "--engine", wanted.engine, *words, "--out", str(file)]
        command += ["--workers", str(wanted.gpus)] if device == "model" else ["--counters", wanted.counters]
        if problem := _run(command, wanted.gpus, device):
            return msgspec.structs.replace(wanted, problem=problem)
        found = msgspec.json.decode(file.read_bytes(), type=Throughput)
        return msgspec.structs.replace(wanted, throughput=found)


def measure_search(task: str, gpus: int, device: str, seed: int, budget: int) -> Searched:
    """A whole search, as a user would start it. Raises ClickException when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "mctskernel", "search", task, "--device", device]
        command += ["--budget", str(budget), "--seed", str(seed), "--out", str(run)]
        command += ["--workers", str(gpus)] if device == "model" else []
        if problem := _run(command, gpus, device):
            raise click.ClickException(problem)
        view = load_view(run)
        went = list(moments(read_events(view.folder.journal)))
        cost = search_cost(view)
        best = max(moment.best_speedup for moment in went)
        return Searched(gpus, seed, cost.evaluations, cost.wall_seconds, best)


def measure_spaces(folder: Path, in_flight: Iterable[int], seeds: int) -> Iterator[InFlight]:
    """Searches of every space of a folder by the default strategy, in this process."""
    spaces = [read_space(file) for file in sorted(folder.glob("*.json.gz"))]
    for each in in_flight:
        traces = [
            search_space(space, Policy().strategy, seed, each, CHECKPOINTS[-1])
            for space in spaces
            for seed in range(seeds)
        ]
        shares = {at: statistics.fmean(trace.share(at) for trace in traces) for at in CHECKPOINTS}
        yield InFlight(each, len(traces), shares)


def page(report: Report) -> str:
    """The tables as Markdown."""
    return markdown(document(report)) + "\n"


def document(report: Report) -> Document:
    """The tables."""
    sections = []
    if report.arms:
        sections.append(Section("Throughput", list(_throughput(report.arms))))
    if report.searches:
        sections.append(Section("Searches", list(_searches(report.searches))))
    if report.spaces:
        sections.append(Section("Recorded spaces", list(_spaces(report.spaces))))
    return Document(f"More GPUs: {report.task} on {report.device}", sections)


def _throughput(arms: Sequence[Arm]) -> Iterator[Block]:
    measured = [(arm, arm.throughput) for arm in arms if arm.throughput is not None]
    first = next(iter(measured), None)
    columns = [
        "engine",
        "counters",
        "GPUs",
        "in flight",
        "evaluations",
        "a second",
        "times one",
        "open in s",
        "alone, s",
    ]
    rows = []
    for arm, found in measured:
        one = _beside(measured, arm.engine, 1, arm.counters)
        rows.append(
            [
                arm.engine,
                arm.counters,
                str(arm.gpus),
                str(found.in_flight),
                str(found.evaluations),
                f"{found.rate:.2f}",
                f"{found.rate / one.rate:.2f}" if one else "",
                f"{found.opening_seconds:.1f}",
                f"{statistics.median(found.latencies):.3f}" if found.latencies else "",
            ]
        )
    yield Table(columns, rows)
    yield from _stages(measured)
    yield from _overhead([pair for pair in measured if pair[0].engine != "local"], measured)
    yield from (Text(f"{arm.engine} on {arm.gpus}: {arm.problem}") for arm in arms if arm.problem)
    if first is not None:
        fingerprint = ", ".join(f"{name} {value}" for name, value in first[1].fingerprint.items())
        yield Text(f"{fingerprint}.")


def _beside(
    measured: Sequence[tuple[Arm, Throughput]], engine: str, gpus: int, counters: CounterSet
) -> Throughput | None:
    """What else was measured, to compare with."""
    wanted = (engine, gpus, counters)
    return next((found for arm, found in measured if (arm.engine, arm.gpus, arm.counters) == wanted), None)


def _stages(measured: Sequence[tuple[Arm, Throughput]]) -> Iterator[Block]:
    """The means of what an evaluation's stages take."""
    stages = list(dict.fromkeys(stage for _, found in measured for stage in found.stage_seconds))
    rows = [
        [
            arm.engine,
            arm.counters,
            str(arm.gpus),
            *(f"{1e3 * found.stage_seconds.get(stage, 0.0):.0f}" for stage in stages),
        ]
        for arm, found in measured
    ]
    if stages:
        yield Table(["ms an evaluation", "counters", "GPUs", *stages], rows)


def _overhead(
    others: Sequence[tuple[Arm, Throughput]], measured: Sequence[tuple[Arm, Throughput]]
) -> Iterator[Block]:
    """What an engine adds to an evaluation over `local`, kernel by kernel where they are evaluated one at a time."""
    rows = []
    for arm, found in others:
        local = _beside(measured, "local", arm.gpus, arm.counters)
        if local is None:
            continue
        pairs = zip(found.latencies, local.latencies, strict=False)
        added = statistics.median(ours - theirs for ours, theirs in pairs) if found.latencies else None
        busy = arm.gpus * (1 / found.rate - 1 / local.rate)
        cells = [f"{1e3 * added:.1f}" if added is not None else "", f"{1e3 * busy:.1f}"]
        rows.append([arm.engine, arm.counters, str(arm.gpus), *cells])
    if rows:
        yield Table(
            ["added over local, ms an evaluation", "counters", "GPUs", "one at a time", "of a busy GPU"], rows
        )


def _searches(searched: Sequence[Searched]) -> Iterator[Block]:
    best = max(each.speedup for each in searched)
    rows = [
        [
            str(gpus),
            str(len(those)),
            str(max(each.evaluations for each in those)),
            f"{statistics.fmean(each.evaluations / each.seconds for each in those):.2f}",
            f"{statistics.fmean(each.speedup for each in those):.3f}",
            f"{100 * statistics.fmean(each.speedup / best for each in those):.1f}",
        ]
        for gpus in dict.fromkeys(each.gpus for each in searched)
        if (those := [each for each in searched if each.gpus == gpus])
    ]
    yield Table(["GPUs", "seeds", "evaluations", "a second", "best speed-up", "% of the best of all"], rows)


def _spaces(spaces: Sequence[InFlight]) -> Iterator[Block]:
    points = [f"% after {at}" for at in CHECKPOINTS]
    rows = [
        [
            str(each.in_flight),
            str(each.searches),
            *(f"{100 * each.shares[at]:.1f}" for at in CHECKPOINTS),
        ]
        for each in spaces
    ]
    yield Table(["in flight", "searches", *points], rows)


def _run(command: Sequence[str], gpus: int, device: str) -> str:
    """Run a command that sees so many GPUs; its last words where it fails."""
    environment = dict(os.environ)
    if device == "gpu":
        seen = os.environ.get(VISIBLE, "").split(",") if os.environ.get(VISIBLE) else map(str, range(gpus))
        environment[VISIBLE] = ",".join(list(seen)[:gpus])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return said[-1].strip() if said else f"it ended with status {done.returncode}."


if __name__ == "__main__":
    main()
