"""A server under load: what is lost, what is judged twice, what it costs, and what it refuses. On Linux.

    python -m mctskernel.experiments.serving_load --clients 8 --evaluations 1000 --out docs/results/serving_load.json

Clients in processes of their own have kernels evaluated by one server, first undisturbed, then through a proxy that
spoils a share of what passes while processes are killed and stopped. What judges is a stand-in that sleeps, so that
everything else is what serving costs; `--judge model` and `--judge gpu` judge in earnest.
"""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.executor import LOCAL
from mctskernel.executors import open_executor
from mctskernel.executors.remote.address import TOKEN_VARIABLE
from mctskernel.experiments.records.documents import Document, Section, Table, Text, markdown
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.serving.clients import Came, evaluate_all, kernels_of
from mctskernel.experiments.serving.load import Load, havoc, load
from mctskernel.experiments.serving.proxy import faulty_proxy
from mctskernel.experiments.serving.refusals import LIMITS, Refusal, refusals
from mctskernel.experiments.serving.served import STAND_IN, Served, ServedSettings
from mctskernel.experiments.serving.stand_in import SECONDS, open_stand_in
from mctskernel.serving.tokens import add_client
from mctskernel.tasks import find_task

MISHAPS = 9
"""Things that befall the server's processes, with as many evaluations between each two."""


class Injected(msgspec.Struct, frozen=True):
    """A kind of fault, and how often it was done."""

    fault: str
    times: int


class Report(msgspec.Struct, frozen=True):
    """The result. `local` and `served` are seconds of one evaluation after the other, without and with a server."""

    judge: str
    workers: int
    evaluation_seconds: float
    undisturbed: Load
    disturbed: Load | None
    injected: list[Injected]
    refused: list[Refusal]
    local: float
    served: float


@click.command()
@click.option("--clients", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--evaluations", type=click.IntRange(min=1), default=1000, show_default=True, help="Of all clients."
)
@click.option("--judge", type=click.Choice([STAND_IN, "model", "gpu"]), default=STAND_IN, show_default=True)
@click.option("--seconds", type=float, default=0.05, show_default=True, help="Of a stand-in's evaluation.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--task", default="softmax", show_default=True, help="Whose starting kernel is judged.")
@click.option(
    "--faults",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Share of requests; 0 for none.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the faults.")
@click.option(
    "--one-by-one", type=int, default=100, show_default=True, help="Evaluations to compare with local ones."
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the result goes, as JSON.")
def main(
    *,
    clients: int,
    evaluations: int,
    judge: str,
    seconds: float,
    workers: int,
    task: str,
    faults: float,
    seed: int,
    one_by_one: int,
    out: Path | None,
) -> None:
    """Load a server and count."""
    with tempfile.TemporaryDirectory(prefix="serving-load-") as name:
        folder = Path(name)
        shutil.copytree(find_task(task), folder / "task")
        (folder / "task" / SECONDS).write_text(str(seconds))
        tokens = {
            f"client-{number}": add_client(folder / "tokens", f"client-{number}") for number in range(clients)
        }
        asked = ServedSettings(judge, workers)
        with _serving(folder, asked) as served:
            undisturbed = load(served, served.url, folder / "task", tokens, evaluations)
            there = _one_by_one(served.url, folder / "task", tokens["client-0"], one_by_one)
        disturbed, injected = None, []
        if faults:
            with (
                _serving(folder, asked) as served,
                faulty_proxy(served.url, faults, seed) as proxy,
                havoc(served, lambda: proxy.passed, max(1, evaluations // (MISHAPS + 1))) as befallen,
            ):
                disturbed = load(served, proxy.url, folder / "task", tokens, evaluations)
            injected = [Injected(*each) for each in sorted({**proxy.injected, **befallen}.items())]
        with _serving(folder, ServedSettings(judge, workers, limits=LIMITS)) as served:
            refused = refusals(served.url, tokens["client-0"], folder / "task")
        here = _one_by_one_here(judge, folder / "task", workers, one_by_one)
    report = Report(judge, workers, seconds, undisturbed, disturbed, injected, refused, here, there)
    click.echo(page(report))
    if out is not None:
        write_result(out, report)
    sys.exit(not is_good(report))


def is_good(report: Report) -> bool:
    """Whether nothing was lost or counted twice, undisturbed nothing judged twice, and all refused that had to be."""
    loads = [each for each in (report.undisturbed, report.disturbed) if each is not None]
    counted = all(not each.lost and not each.twice and not each.problems for each in loads)
    once = report.undisturbed.judged in (0, report.undisturbed.submitted)
    return counted and once and all(each.is_right for each in report.refused)


def page(report: Report) -> str:
    """The result as Markdown."""
    loads = [("undisturbed", report.undisturbed)]
    if report.disturbed is not None:
        loads.append(("disturbed", report.disturbed))
    each = f"{1e3 * report.evaluation_seconds:g} ms" if report.judge == STAND_IN else "as long as it takes"
    lead = Text(
        f"{report.undisturbed.clients} clients, each in a process of its own, share a server whose {report.workers} "
        f"workers judge by {report.judge}, {each} an evaluation."
    )
    sections = [
        Section("What came back", [_loads(loads), _memory(loads), _added(report)]),
        Section("What was refused", [_refused(report)]),
    ]
    if report.disturbed is not None:
        sections.insert(1, Section("What was done to it", [_injected(report)]))
    return markdown(Document("A server under load", sections, [lead])) + "\n"


def _loads(loads: list[tuple[str, Load]]) -> Table:
    columns = [
        "",
        "evaluations",
        "lost",
        "counted twice",
        "judged",
        "a second",
        "median, ms",
        "longest, s",
        "fewest to most of a client",
    ]
    rows = [
        [
            name,
            str(each.submitted),
            str(each.lost),
            str(each.twice),
            str(each.judged or "not counted"),
            f"{each.per_second:.1f}",
            f"{1e3 * each.median_seconds:.1f}",
            f"{each.longest_seconds:.2f}",
            f"{min(each.shares)} to {max(each.shares)}",
        ]
        for name, each in loads
    ]
    return Table(columns, rows)


def _memory(loads: list[tuple[str, Load]]) -> Text:
    before, after = loads[0][1].growth
    return Text(
        "Shares are counted when the first client is through. Disturbed, what was being judged when its process was "
        "killed is judged again, and the count holds only what a process lived to say. The server's own process held "
        f"{before / 2**20:.1f} MB in the second quarter of the undisturbed time and {after / 2**20:.1f} MB in the last."
    )


def _added(report: Report) -> Text:
    added = 1e3 * (report.served - report.local)
    return Text(
        f"One after the other, an evaluation takes {1e3 * report.local:.1f} ms with the local executor and "
        f"{1e3 * report.served:.1f} ms through the server: {added:.1f} ms more (medians)."
    )


def _injected(report: Report) -> Table:
    return Table(["fault", "times"], [[each.fault, str(each.times)] for each in report.injected])


def _refused(report: Report) -> Table:
    rows = [
        [
            each.what,
            str(each.status) if each.status else "connection closed",
            each.retry_after,
            f"{each.seconds:.2f}",
            each.sentence or "-",
        ]
        for each in report.refused
    ]
    return Table(["what a client did", "status", "Retry-After", "after, s", "what it was told"], rows)


@contextmanager
def _serving(folder: Path, asked: ServedSettings) -> Iterator[Served]:
    served = Served(folder / "tokens", asked)
    try:
        yield served
    finally:
        served.stop()


def _one_by_one(url: str, task: Path, token: str, count: int) -> float:
    os.environ[TOKEN_VARIABLE] = token
    with open_executor(DeviceSpec(url, task), 0) as executor:
        return _median(evaluate_all(executor, kernels_of(task, secrets.token_hex(4), count), at_once=1))


def _one_by_one_here(judge: str, task: Path, workers: int, count: int) -> float:
    kind = "model" if judge == STAND_IN else judge
    opener = open_stand_in if judge == STAND_IN else open_executor
    with opener(DeviceSpec(kind, task), workers, LOCAL) as executor:
        return _median(evaluate_all(executor, kernels_of(task, "here", count), at_once=1))


def _median(came: list[Came]) -> float:
    return round(statistics.median(each.seconds for each in came), 5)


if __name__ == "__main__":
    main()
