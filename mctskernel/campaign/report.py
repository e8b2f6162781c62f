"""What a campaign came to: campaign.json, and the page that is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mctskernel.campaign.configuration import CampaignError
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.profiling.quantities import time_text
from mctskernel.report.markdown_table import table_lines
from mctskernel.run import Budget

FILE = "campaign.json"
SCHEMA = "mctskernel.campaign"
SCHEMA_VERSION = 1

STRETCHES = 10
"""Parts of equally many evaluations that the page tells the tasks of."""


LITTLE = 5e-4
"""A share of the model's time that isn't told."""


class Span(msgspec.Struct, frozen=True):
    """A figure and its interval."""

    value: float
    low: float
    high: float


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task. Times are the kernel's part of the model's time, as the campaign counts it, and shares of that.

    `speedup` is the starting kernel's time over the best kernel's, which has passed the last gate if `passed`.
    `headroom` is the best kernel's time over the floor, None where no floor is known. `ending` says why it was searched
    no further, and `problem` why it couldn't be searched at all. `concluded` is the number of evaluations after which
    its answer was chosen, None before that.
    """

    name: str
    task: str
    language: str
    run: str
    before: float
    after: float
    share_before: float
    share_after: float
    speedup: Span
    headroom: float | None
    passed: bool
    edit: str
    evaluations: int
    seconds: float
    dollars: float
    ending: str
    problem: str
    concluded: int | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign. The model's time, `before` with the starting kernels, is in seconds if `in_seconds`, else 1.

    `interval` says what the intervals are. `rest` is what no task is. `trace` names the task of each evaluation by its
    place in `tasks`, in the order in which they came back, and `times` has the model's time after those that changed
    it. `ending` is empty of a campaign that goes on, or was cut off.
    """

    title: str
    device: str
    source: str
    budget: Budget
    evaluations: int
    seconds: float
    dollars: float
    ending: str
    in_seconds: bool
    before: float
    after: Span
    rest: float
    interval: str
    tasks: tuple[TaskRow, ...]
    trace: tuple[int, ...]
    times: tuple[tuple[int, float], ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION


def read_report(out: Path) -> Report:
    """The report of a campaign's folder. Raises CampaignError."""
    file = out / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Report)
    except FileNotFoundError as error:
        raise CampaignError(f"{out} is no campaign: it has no {FILE}.") from error
    except (OSError, *UNDECODABLE) as error:
        raise CampaignError(f"{file} is no campaign's: {excerpt(error)}.") from error
    if (found.schema, found.schema_version) != (SCHEMA, SCHEMA_VERSION):
        raise CampaignError(
            f"{file} is {found.schema[:80]} {found.schema_version}, which this version can't read."
        )
    return found


def write_report(out: Path, report: Report) -> None:
    """Write campaign.json. Raises CampaignError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / FILE, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as error:
        raise CampaignError(f"{out / FILE} can't be written: {error.strerror or error}.") from error


def markdown(report: Report) -> str:
    """The page of a campaign."""
    blocks = [
        f"# {report.title or 'A campaign'}",
        "\n".join(_summary(report)),
        "\n".join(table_lines(_HEAD, [_cells(report, row) for row in report.tasks])),
        *(f"`{row.name}` is left out: {row.problem}" for row in report.tasks if row.problem),
        _EXPLANATION.format(interval=report.interval),
    ]
    if len(report.trace) >= STRETCHES:
        blocks += ["## Where the evaluations went", "\n".join(_stretches(report))]
    return "\n\n".join(blocks) + "\n"


_HEAD = (
    "task",
    "share before",
    "share after",
    "speed-up",
    "interval",
    "over the floor",
    "evaluations",
    "seconds",
    "ended",
    "run",
)

_EXPLANATION = (
    "Shares are of the model's time, before and after; times of the kernels are {interval}, and those of several are "
    "taken as independent. Seconds are what the task's evaluations cost. `mctskernel show` tells a run's story."
)


def _summary(report: Report) -> Iterator[str]:
    before, after = report.before, report.after
    gain = Span(before / after.value, before / after.high, before / after.low)
    times, gains = "", ""
    if after.high > after.low:
        times = f" [{time_of(report, after.low)} to {time_of(report, after.high)}]"
        gains = f" [{gain.low:.2f} to {gain.high:.2f}]"
    yield (
        f"The model's time went from {time_of(report, before)} to {time_of(report, after.value)}{times}, "
        f"{gain.value:.2f}x{gains} ({report.source}), after {spent_text(report)} on {report.device}."
    )
    if report.rest > LITTLE * before:
        yield f"{report.rest / before:.1%} of what it was is none of these kernels'."
    yield f"Ended: {report.ending}." if report.ending else "It isn't finished."


def time_of(report: Report, value: float) -> str:
    """A part of the model's time: a time, or where only shares are known a share of what it was."""
    return time_text(value) if report.in_seconds else f"{value:.1%}"


def spent_text(report: Report) -> str:
    """What was spent, in words."""
    dollars = f" and ${report.dollars:.2f}" if report.dollars else ""
    return f"{report.evaluations} evaluations in {report.seconds:.0f} s{dollars}"


def _cells(report: Report, row: TaskRow) -> list[str]:
    speedup = row.speedup
    return [
        row.name,
        f"{row.share_before:.1%}",
        f"{row.share_after:.1%}",
        f"{speedup.value:.2f}x{'' if row.passed else ' (not final)'}" if not row.problem else "-",
        f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup.high > speedup.low else "-",
        f"{row.headroom:.2f}x" if row.headroom is not None else "-",
        str(row.evaluations),
        f"{row.seconds:.0f}",
        "left out" if row.problem else row.ending or report.ending or "goes on",
        f"`{row.run}`",
    ]


def _stretches(report: Report) -> Iterator[str]:
    """How many of each stretch's evaluations went to each task, and the model's time at its end."""
    count = len(report.trace)
    ends = [math.ceil(count * part / STRETCHES) for part in range(1, STRETCHES + 1)]
    rows, begin = [], 0
    for end in ends:
        part = report.trace[begin:end]
        counts = [str(part.count(place) or "") for place in range(len(report.tasks))]
        now = next((time for number, time in reversed(report.times) if number <= end), report.before)
        rows.append([f"{begin + 1} to {end}", *counts, time_of(report, now)])
        begin = end
    yield from table_lines(("evaluations", *(row.name for row in report.tasks), "model's time"), rows)
