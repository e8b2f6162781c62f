"""All tables of docs/strategies.md and their plot, from searches that are made where they are missing.

    python -m mctskernel.experiments.strategy_report --spaces SPACES --more MORE --kernel-tuner FILE
        --traces TRACES --out docs/results

SPACES are the spaces that strategies are judged on, MORE those of `mctskernel.experiments.made_spaces`, FILE is what
`mctskernel.experiments.kernel_tuner_baseline` wrote. Searches are kept in TRACES: a report that was cut off goes on.
"""

from __future__ import annotations

import lzma
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from mctskernel.experiments.kernel_tuner_baseline import BY_REQUESTS
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.strategies.contenders import DEFAULT, GUIDED, WALK, contenders
from mctskernel.experiments.strategies.jobs import Job, jobs_of, run_jobs
from mctskernel.experiments.strategies.simulated_search import code_digest
from mctskernel.experiments.strategies.tables import (
    asynchrony_table,
    leave_one_out_table,
    means_table,
    shares_table,
)
from mctskernel.experiments.strategies.traces import CHECKPOINTS, Trace, TraceLog, read_traces, shares
from mctskernel.profiling.versions import package_versions
from mctskernel.report.resampling import estimate

BUDGET = max(CHECKPOINTS)

IN_FLIGHT = 8

FEW = (5, 10, 20)
"""Evaluations after which shares are told in spaces of some fifty configurations."""

SUMMARY_FILE = "strategies.json"
TRACES_FILE = "strategies_traces.jsonl.xz"

KERNEL_TUNER = "kernel_tuner:"

PLOTTED = ("kernel_tuner:adaptive_tabu_greywolf", "kernel_tuner:genetic_algorithm", "random", WALK, GUIDED)


@click.command()
@click.option("--spaces", required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--more", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--kernel-tuner", "baseline", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Of every strategy."
)
@click.option("--few-seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Of all else.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True, help="Processes."
)
@click.option("--seconds", type=click.FloatRange(min=0), help="Begin no more searches after these.")
@click.option("--traces", required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False))
def main(
    *,
    spaces: Path,
    more: Path | None,
    baseline: Path | None,
    seeds: int,
    few_seeds: int,
    jobs: int,
    seconds: float | None,
    traces: Path,
    out: Path,
) -> None:
    """Make the searches, then write tables, figures, searches and the plot into OUT."""
    log = TraceLog(traces)
    wanted = _searches(spaces, more, seeds, few_seeds)
    run_jobs(wanted, jobs, log, seconds)
    keys = {job.key for job in wanted}
    found = [trace for trace in read_traces(traces) if trace.key in keys]
    if len({trace.code for trace in found}) > 1:
        click.echo(f"{traces} holds searches of several versions of the code.", err=True)
    judged = {job.key[0] for job in wanted if job.path.parent == spaces}
    report = Report(
        fingerprint=_fingerprint(),
        judged=[each for each in found if each.space in judged],
        more=[each for each in found if each.space not in judged],
        baseline=read_traces(baseline) if baseline else [],
    )
    write_report(out, report)
    (out / "strategies.md").write_text(markdown_report(report), encoding="utf-8")
    plot_report(report, out / "strategies.svg")


@dataclass(frozen=True)
class Report:
    """The traces of each kind of space, and Kernel Tuner's."""

    fingerprint: Mapping[str, str]
    judged: Sequence[Trace]
    more: Sequence[Trace]
    baseline: Sequence[Trace]


def write_report(out: Path, report: Report) -> None:
    """Write what the tables are made of into a folder: their figures, and every search behind them."""
    write_result(out / SUMMARY_FILE, _summary(report))
    traces = (*report.judged, *report.more, *report.baseline)
    (out / TRACES_FILE).write_bytes(
        lzma.compress(b"".join(msgspec.json.encode(each) + b"\n" for each in traces), preset=9)
    )


def read_report(folder: Path) -> Report:
    """What `write_report` wrote. Spaces that Kernel Tuner searched are those that strategies are judged on."""
    summary = msgspec.json.decode((folder / SUMMARY_FILE).read_bytes(), type=Summary)
    lines = lzma.decompress((folder / TRACES_FILE).read_bytes()).splitlines()
    traces = [msgspec.json.decode(line, type=Trace) for line in lines]
    baseline = [each for each in traces if each.contender.startswith(KERNEL_TUNER)]
    ours = [each for each in traces if not each.contender.startswith(KERNEL_TUNER)]
    judged = {each.space for each in baseline}
    return Report(
        fingerprint=summary.fingerprint,
        judged=[each for each in ours if each.space in judged],
        more=[each for each in ours if each.space not in judged],
        baseline=baseline,
    )


def plot_report(report: Report, out: Path) -> None:
    """Draw the curves of a few contenders."""
    # Imported here: matplotlib is an extra.
    from mctskernel.experiments.strategies.plots import plot_shares  # noqa: PLC0415 - as said above

    shown = [
        each
        for each in (*report.judged, *report.baseline)
        if each.contender in PLOTTED and each.in_flight == 1
    ]
    plot_shares(shown, out)


def markdown_report(report: Report) -> str:
    """The tables under their titles."""
    alone = [each for each in report.judged if each.in_flight == 1]
    plain = [each for each in alone if "@" not in each.contender and ":" not in each.contender]
    walks = [each for each in alone if each.contender in contenders(["walks"])]
    grid = [each for each in alone if each.contender in contenders(["grid"])]
    by_requests = [each for each in report.baseline if each.contender.endswith(BY_REQUESTS)]
    by_configuration = [each for each in report.baseline if not each.contender.endswith(BY_REQUESTS)]
    made, recorded = _by_size([each for each in report.more if each.in_flight == 1])
    sections = {
        "Strategies": shares_table([*plain, *by_configuration], CHECKPOINTS),
        "Kernel Tuner's strategies, every request counted": shares_table(by_requests, CHECKPOINTS),
        f"{IN_FLIGHT} in flight against 1": asynchrony_table(report.judged, IN_FLIGHT, CHECKPOINTS),
        "Variations of the model of edits": shares_table(grid, CHECKPOINTS),
        "The variation that is best on the other spaces": leave_one_out_table(grid, CHECKPOINTS),
        "Policies of the tree search": shares_table(walks, CHECKPOINTS),
        "Made-up spaces": means_table(made, CHECKPOINTS),
        "Families of kernels recorded on an H100": means_table(recorded, FEW),
    }
    fingerprint = ", ".join(f"{name} {value}" for name, value in report.fingerprint.items())
    tables = "\n\n".join(f"## {title}\n\n{table}" for title, table in sections.items())
    return f"# Strategies on recorded spaces\n\n{fingerprint}.\n\n{tables}\n"


def _searches(spaces: Path, more: Path | None, seeds: int, few: int) -> list[Job]:
    """A part of what takes most comes first, so that every table has something soon; some jobs occur twice."""
    beside = [each for each in (more,) if each]
    strategies, first = contenders(["all"]), tuple(dict.fromkeys((DEFAULT, GUIDED)))

    def main_tables(count: int) -> list[Job]:
        return [
            *jobs_of([spaces], first, range(count), 1, BUDGET),
            *jobs_of([spaces], first, range(count), IN_FLIGHT, BUDGET),
            *jobs_of([spaces], strategies, range(count), 1, BUDGET),
        ]

    return [
        *main_tables(min(seeds, few)),
        *jobs_of([spaces], contenders(["grid", "walks"]), range(few), 1, BUDGET),
        *jobs_of(beside, strategies, range(few), 1, BUDGET),
        *main_tables(seeds),
    ]


def _by_size(traces: Sequence[Trace]) -> tuple[list[Trace], list[Trace]]:
    """Those of spaces that take more than the budget to search, and of those that are searched whole."""
    longest: dict[str, int] = {}
    for trace in traces:
        longest[trace.space] = max(longest.get(trace.space, 0), trace.evaluations)
    large = {space for space, evaluations in longest.items() if evaluations >= BUDGET}
    return [each for each in traces if each.space in large], [
        each for each in traces if each.space not in large
    ]


class Row(msgspec.Struct, frozen=True):
    """A contender in a space: the mean share after so many evaluations, and its interval."""

    space: str
    contender: str
    in_flight: int
    seeds: int
    shares: dict[int, tuple[float, float, float]]


class Summary(msgspec.Struct, frozen=True):
    """What the tables are made of."""

    fingerprint: dict[str, str]
    rows: list[Row]


def _summary(report: Report) -> Summary:
    groups: dict[tuple[str, str, int], list[Trace]] = {}
    for trace in (*report.judged, *report.more, *report.baseline):
        groups.setdefault((trace.space, trace.contender, trace.in_flight), []).append(trace)
    rows = [Row(*key, len(traces), _shares(traces)) for key, traces in sorted(groups.items())]
    return Summary(dict(report.fingerprint), rows)


def _shares(traces: Sequence[Trace]) -> dict[int, tuple[float, float, float]]:
    found = {count: estimate([shares(traces, count)]) for count in (*FEW, *CHECKPOINTS)}
    return {
        count: (round(each.mean, 4), round(each.low, 4), round(each.high, 4)) for count, each in found.items()
    }


def _fingerprint() -> dict[str, str]:
    today = datetime.now(UTC).date().isoformat()
    versions = package_versions("numpy")
    return {"date": today, "Python": platform.python_version(), **versions, "code": code_digest()}


if __name__ == "__main__":
    main()
