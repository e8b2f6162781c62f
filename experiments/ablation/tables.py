"""Tables of an ablation in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mctskernel.core.resampling import Estimate
from mctskernel.experiments.ablation.statistics import FEWEST, ArmRow, Comparison, statistics
from mctskernel.experiments.ablation.sweep import LOG_SPEEDUP, Results
from mctskernel.experiments.results import page, table
from mctskernel.report.notes import counted


def write_tables(out: Path, results: Results) -> tuple[Path, ...]:
    """Write table.md, and plot.svg and plot.pdf where matplotlib is installed. Raises OSError."""
    written = [out / "table.md"]
    written[0].write_text(f"{render(results)}\n", "utf-8")
    if find_spec("matplotlib") is not None:
        from mctskernel.experiments.ablation.plots import plot  # noqa: PLC0415 - needs the extra `plots`

        plots = (out / "plot.svg", out / "plot.pdf")
        plot(results, *plots)
        written += plots
    return tuple(written)


def render(results: Results) -> str:
    """Render the tables: the same results make the same bytes."""
    found, words = statistics(results), words_of(results)
    several = len({trial.seed for trial in results.trials}) > 1
    intervals = ", with 95 % bootstrap intervals over seeds" if several else ""
    costs = [column for column in _COSTS if any(map(column.is_shown, found.arms))]
    mean = words.interval if several else words.mean_text
    arms = [row.arm for row in found.arms]
    compared = ("after", words.head, "p", "p (Holm)", "pairs won / tied / lost", "share won", "subjects won")
    return page(
        _plain(results.title),
        _plain(results.question),
        " ".join(_notes(results)),
        "\n".join(f"- `{arm.name}`{f': `{arm.settings}`' if arm.settings else ''}" for arm in results.arms),
        _section(
            f"{words.mean.capitalize()} by number of evaluations{intervals}",
            ("arm", *map(str, results.checkpoints), *(each.name for each in costs)),
            ((row.arm, *map(mean, row.means), *(each.cell(row) for each in costs)) for row in found.arms),
        ),
        _section(
            f"Against {results.baseline}, paired by subject and seed: {words.difference}",
            ("arm", *compared),
            (_compared(each, words) for each in found.comparisons),
        ),
        _section(
            f"{words.mean.capitalize()} after {results.checkpoints[-1]} evaluations, by subject",
            ("subject", *arms),
            (
                (subject, *(words.mean_text(by_arm[arm]) if arm in by_arm else "" for arm in arms))
                for subject, by_arm in found.by_subject.items()
            ),
        ),
    )


def _section(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"## {_plain(caption)}\n\n{table(head, (tuple(map(_plain, row)) for row in rows))}"


@dataclass(frozen=True)
class Words:
    """How scores are shown: shares as they are and differences in points, logarithms as factors."""

    mean: str
    difference: str
    head: str
    value: Callable[[float], float]
    difference_value: Callable[[float], float]
    digits: int
    unit: str = ""

    def mean_text(self, found: Estimate) -> str:
        return f"{self.value(found.mean):.{self.digits}f}{self.unit}"

    def interval(self, found: Estimate) -> str:
        low, high = (f"{self.value(each):.{self.digits}f}" for each in (found.low, found.high))
        return f"{self.mean_text(found)} ({low} to {high})"

    def change(self, value: float) -> str:
        return f"{self.difference_value(value):{'.3f' if self.unit else '+.1f'}}"


_SHARES = Words(
    "mean share of the optimum",
    "difference in percentage points",
    "points",
    lambda share: share,
    lambda share: 100 * share,
    3,
)

_SPEEDUPS = Words(
    "geometric mean of the speed-up over the starting kernel",
    "ratio of the speed-ups",
    "ratio",
    math.exp,
    math.exp,
    2,
    "x",
)


def words_of(results: Results) -> Words:
    return _SPEEDUPS if results.score == LOG_SPEEDUP else _SHARES


def _compared(each: Comparison, words: Words) -> tuple[str, ...]:
    interval = ""
    if each.low is not None and each.high is not None:
        interval = f" ({words.change(each.low)} to {words.change(each.high)})"
    return (
        each.arm,
        str(each.at),
        f"{words.change(each.difference)}{interval}",
        _p(each.p),
        _p(each.adjusted_p),
        f"{each.won} / {each.tied} / {each.lost}",
        f"{each.share_won:.0%}",
        f"{each.subjects_won} of {each.subjects}",
    )


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


@dataclass(frozen=True)
class _Column:
    name: str
    cell: Callable[[ArmRow], str]
    is_shown: Callable[[ArmRow], bool] = lambda _: True


_COSTS = (
    _Column("trials", lambda row: str(row.trials)),
    _Column("evaluations a trial", lambda row: f"{row.evaluations:.0f}"),
    _Column("failed", lambda row: f"{row.failed:.0%}"),
    _Column("seconds a trial", lambda row: f"{row.seconds:.2f}"),
    _Column("device seconds", lambda row: f"{row.device_seconds:.1f}", lambda row: row.device_seconds > 0),
    _Column("dollars", lambda row: f"{row.dollars:.4f}", lambda row: row.dollars > 0),
    _Column("tokens", lambda row: f"{row.tokens:.0f}", lambda row: row.tokens > 0),
    _Column(
        "validation passed", lambda row: f"{row.passed} of {row.trials}", lambda row: row.passed is not None
    ),
)


def _notes(results: Results) -> Iterator[str]:
    seeds = len({trial.seed for trial in results.trials})
    yield (
        f"{len(results.trials)} trials of {len(results.arms)} arms on {len(results.subjects)} subjects with "
        f"{counted(seeds, 'seed')}; times are {results.source}."
    )
    if len(results.trials) < results.planned:
        yield f"Not finished: {results.planned} trials are planned."
    yield from dict.fromkeys(f"{trial.subject}: {trial.problem}" for trial in results.trials if trial.problem)
    yield (
        "Intervals (bootstrap) and p-values (sign flips of the pairs; Holm's correction over all rows) generalise to "
        f"other seeds on these subjects, not to other subjects; fewer than {FEWEST} pairs have none. Share won: of the "
        "pairs, a tie counting half."
    )


def _plain(text: str) -> str:
    return " ".join(text.split())
