"""The table of a bench: rows, means with intervals, fast_p, and the problems that are furthest behind.

Source: fast_p and the geometric mean are KernelBench's (Ouyang et al., "KernelBench: Can LLMs write efficient GPU
kernels?", 2025, section 3.4, and src/score.py of its repository).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from mctskernel.core.kernel import SOURCE_LANGUAGES, Language
from mctskernel.core.resampling import Estimate, estimate, share_interval
from mctskernel.experiments.bench.rows import Row
from mctskernel.experiments.results import Provenance, page, table
from mctskernel.problems.torch_task import NO_START
from mctskernel.report.baselines import AUTOTUNED, COMPILED, EAGER
from mctskernel.run.search import OTHER_START

THRESHOLDS = (0.8, 1.0, 1.2, 1.5, 2.0)  # the speed-ups at which fast_p is given
EQUAL = 0.98  # the least speed-up that counts as equal
BEHIND = 0.9
WORST = 10
REORDERED = "reordered"  # the start whose sums come before its products: answers that grew from it are marked

BASELINES = (EAGER, COMPILED, AUTOTUNED)


class FastP(msgspec.Struct, frozen=True):
    """The share of all problems that are right and more than `threshold` times as fast, with its 95 % interval."""

    threshold: float
    share: float
    low: float
    high: float


class Against(msgspec.Struct, frozen=True):
    """All problems against one baseline; `known` have a valid answer and a time of it.

    `mean` is the geometric mean of the speed-ups of those, with its 95 % bootstrap interval over problems; `even` are
    ahead or equal (within 2 %), `behind` below 0.9.
    """

    baseline: str
    known: int
    fast: tuple[FastP, ...]
    mean: tuple[float, float, float]
    even: int
    behind: int


class Summary(msgspec.Struct, frozen=True):
    """What the rows say together."""

    problems: int
    read: int
    started: int
    right: dict[str, int]
    valid: int
    against: tuple[Against, ...]
    in_order: tuple[Against, ...]
    """Without the answers whose sums come before products; empty where there are none."""
    floor_shares: dict[str, float]
    medians: dict[str, float]
    totals: dict[str, float]


def speedup_over(row: Row, baseline: str) -> float | None:
    """How many times as fast as a baseline the answer is; None without an answer or a time."""
    if not row.is_valid or row.baselines is None:
        return None
    return row.baselines.speedups.get(baseline)


def is_reordered(row: Row) -> bool:
    """Whether sums come before products in the answer, an algebraic change that torch.compile doesn't make."""
    return row.is_valid and row.searched is not None and row.searched.origin == REORDERED


def floor_share(row: Row) -> float | None:
    """The roofline's time over the answer's."""
    if not row.is_valid or row.baselines is None or not row.baselines.floor_seconds:
        return None
    return row.baselines.floor_seconds / row.baselines.best_seconds


def fast_p(speedups: Sequence[float | None], threshold: float) -> float:
    """The share of results, None where wrong or unknown, that are over `threshold` times as fast as the baseline."""
    return _successes(speedups, threshold) / len(speedups) if speedups else 0.0


def geometric_mean(values: Sequence[float]) -> Estimate:
    """The geometric mean with its bootstrap interval."""
    found = estimate([np.log(np.asarray(values))])
    return Estimate(math.exp(found.mean), math.exp(found.low), math.exp(found.high))


def _against(rows: Sequence[Row], baseline: str) -> Against | None:
    """Score all problems against a baseline; None without a time of it."""
    speedups = [speedup_over(row, baseline) for row in rows]
    known = [each for each in speedups if each is not None]
    if not known:
        return None
    mean = geometric_mean(known)
    return Against(
        baseline,
        len(known),
        tuple(
            FastP(
                threshold,
                fast_p(speedups, threshold),
                *share_interval(_successes(speedups, threshold), len(speedups)),
            )
            for threshold in THRESHOLDS
        ),
        (mean.mean, mean.low, mean.high),
        sum(each >= EQUAL for each in known),
        sum(each < BEHIND for each in known),
    )


def _against_all(rows: Sequence[Row]) -> tuple[Against, ...]:
    return tuple(found for each in BASELINES if (found := _against(rows, each)) is not None)


def summary(rows: Sequence[Row]) -> Summary:
    """Sum the rows up."""
    others = [row for row in rows if not is_reordered(row)]
    searched = [row.searched for row in rows if row.searched is not None]
    shares: dict[str, list[float]] = {}
    for row in rows:
        if (share := floor_share(row)) is not None:
            shares.setdefault(row.level, []).append(share)
    spent = [row.baselines for row in rows if row.baselines is not None]

    def median(values: Iterable[float]) -> float:
        found = list(values)
        return statistics.median(found) if found else 0.0

    return Summary(
        problems=len(rows),
        read=sum(row.read is not None for row in rows),
        started=sum(row.read is not None and not row.read.reason for row in rows),
        right={
            str(language): sum(_found(row, language) == "ok" for row in rows) for language in SOURCE_LANGUAGES
        },
        valid=sum(row.is_valid for row in rows),
        against=_against_all(rows),
        in_order=_against_all(others) if len(others) < len(rows) else (),
        floor_shares={level: median(each) for level, each in shares.items()},
        medians={
            "reading, s": median(row.read.seconds for row in rows if row.read is not None),
            "opening, s": median(each.opening_seconds for each in searched),
            "search with validation, s of wall time": median(each.wall_seconds for each in searched),
            "reading and that together, s": median(
                row.read.seconds + row.searched.wall_seconds for row in rows if row.read and row.searched
            ),
            "final validation, s": median(
                each.validation_seconds for each in searched if each.validation_seconds
            ),
            "evaluations": median(each.evaluations for each in searched),
            "evaluations a second": median(
                each.evaluations / each.search_seconds for each in searched if each.search_seconds
            ),
            "verifying, timing and counting an evaluation, s": median(
                sum(each.stage_seconds.get(stage, 0.0) for stage in ("verify", "time", "counters"))
                / each.evaluations
                for each in searched
                if each.evaluations
            ),
        },
        totals={
            "GPU seconds of searches": math.fsum(each.gpu_seconds for each in searched),
            "GPU seconds of PyTorch": math.fsum(each.gpu_seconds for each in spent),
            "evaluations": float(sum(each.evaluations for each in searched)),
        },
    )


Cell = tuple[str, Callable[[Row], str]]


def _milliseconds(seconds: float | None) -> str:
    return f"{1e3 * seconds:.4g}" if seconds else ""


def _times(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else ""


def _start_time(row: Row, name: str) -> str:
    """The milliseconds of the fastest start whose name begins so, or that it failed."""
    found = [each for each in row.searched.starts if each.name.startswith(name)] if row.searched else []
    right = [each.seconds for each in found if each.found == "ok"]
    return _milliseconds(min(right)) if right else "failed" if found else ""


def _of(row: Row, baseline: str) -> str:
    return _milliseconds(row.baselines.seconds.get(baseline)) if row.baselines else ""


COLUMNS: tuple[Cell, ...] = (
    ("problem", lambda row: row.problem + " *" * is_reordered(row)),
    ("plain", lambda row: _start_time(row, "plain")),
    ("templates", lambda row: _start_time(row, "templates")),
    ("reordered", lambda row: _start_time(row, REORDERED)),
    ("compiled", lambda row: _start_time(row, "compile")),
    (
        "best",
        lambda row: (
            _milliseconds(row.baselines.best_seconds if row.baselines else row.searched.best_seconds)
            if row.is_valid and row.searched
            else "none"
        ),
    ),
    ("eager", lambda row: _of(row, EAGER)),
    ("compile", lambda row: _of(row, COMPILED)),
    ("max-autotune", lambda row: _of(row, AUTOTUNED)),
    ("x eager", lambda row: _times(speedup_over(row, EAGER))),
    ("x compile", lambda row: _times(speedup_over(row, COMPILED))),
    ("x max-autotune", lambda row: _times(speedup_over(row, AUTOTUNED))),
    ("x start", lambda row: _times(row.searched.speedup) if row.is_valid and row.searched else ""),
    ("precision", lambda row: row.read.precision if row.read else ""),
    ("roofline", lambda row: f"{share:.0%}" if (share := floor_share(row)) is not None else ""),
    ("evaluations", lambda row: str(row.searched.evaluations) if row.searched else ""),
    (
        "a second",
        lambda row: (
            f"{row.searched.evaluations / row.searched.search_seconds:.1f}"
            if row.searched and row.searched.search_seconds
            else ""
        ),
    ),
    ("wall, s", lambda row: f"{row.searched.wall_seconds:.0f}" if row.searched else ""),
    (
        "GPU, s",
        lambda row: f"{row.searched.gpu_seconds:.1f}" if row.searched and row.searched.gpu_seconds else "",
    ),
)
"""The columns of the table, of which those that are empty are left out; times in milliseconds."""


def document(rows: Sequence[Row], title: str, provenance: Provenance | None = None, waiting: int = 0) -> str:
    """The page of the table in Markdown; so many more problems are `waiting`."""
    found = summary(rows)
    chosen = [each for each in COLUMNS if any(each[1](row) for row in rows)]
    cells = [[cell(row) for _, cell in chosen] for row in rows]
    made = f"`{provenance.command}`; {provenance.machine}; {provenance.date}." if provenance else ""
    return page(
        title,
        made,
        f"{waiting} more problems weren't searched: the same command goes on with them." if waiting else "",
        *_sentences(rows, found),
        _fast_table(found.against),
        "Times are in milliseconds, of the whole function with a cold L2 cache. "
        "Precision is what PyTorch itself computes in: TF32 where its settings have products in it.",
        table([name for name, _ in chosen], cells) if rows else "",
        *_section("## Furthest behind", worst(rows)),
        *_section("## What failed", failures(rows)),
    )


def _sentences(rows: Sequence[Row], found: Summary) -> Iterator[str]:
    """What the rows say together, in sentences, some of them empty."""
    right = ", ".join(f"{count} right in {language}" for language, count in found.right.items())
    yield (
        f"{found.problems} problems: {found.read} read, {found.started} with a starting kernel, {right}, {found.valid} "
        "with an answer that passed the final validation."
    )
    for each in found.against:
        yield f"Over {_mean(each)}; ahead or equal within 2 % on {each.even}, below {BEHIND:g} on {each.behind}."
    if moved := sum(map(is_reordered, rows)):
        yield (
            f"In the {moved} marked * sums, means or average pools come before the products whose results they reduce, "
            "an algebraic change that saves most of the work, and that torch.compile doesn't make. Without these: "
            f"{'; '.join(map(_mean, found.in_order)) or 'no times'}."
        )
    shares = ", ".join(f"{share:.0%} of {level}" for level, share in found.floor_shares.items())
    yield f"At the median the answers reach these shares of the roofline: {shares}." if shares else ""
    medians = ", ".join(f"{name} {value:.3g}" for name, value in found.medians.items() if value)
    yield f"Medians: {medians}." if medians else ""
    totals = ", ".join(f"{name} {value:.0f}" for name, value in found.totals.items() if value)
    yield f"In all: {totals}." if totals else ""


def _mean(each: Against) -> str:
    mean, low, high = each.mean
    return f"{each.baseline}: geometric mean {mean:.2f} ({low:.2f} to {high:.2f}) of {each.known}"


def worst(rows: Sequence[Row]) -> list[str]:
    """The problems that are furthest behind PyTorch's fastest time, with the start that won and what binds it."""
    behind = [(least, row) for row in rows if (least := _least(row)) is not None]
    behind.sort(key=lambda each: each[0])
    return [
        f"{row.problem}: {least:.2f}x over {_fastest(row)}; from the start `{row.searched.origin}`. "
        f"{row.searched.evidence}".rstrip()
        for least, row in behind[:WORST]
        if row.searched is not None
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    """Why there is no valid answer, why starts failed, and what has no time."""
    found = []
    for row in rows:
        if row.reason:
            found.append(f"{row.problem}: {row.reason}")
        notes = [each for each in (row.read.notes if row.read else ()) if each.startswith(NO_START)]
        notes += [each for each in (row.searched.notes if row.searched else ()) if OTHER_START in each]
        found += [f"{row.problem}: {each}" for each in notes if each != row.reason]
        found += [
            f"{row.problem}: the start `{each.name}` ({each.language}): {each.found}"
            for each in (row.searched.starts if row.searched else ())
            if each.found != "ok"
        ]
        found += [
            f"{row.problem}: {stage}: {text}" for stage, text in row.failures.items() if text != row.reason
        ]
        if row.baselines is not None and row.baselines.problem:
            found.append(f"{row.problem}: {row.baselines.problem}")
    return found


def _fast_table(found: Sequence[Against]) -> str:
    if not found:
        return ""
    columns = ["more than", *(each.baseline for each in found)]
    cells = [
        [
            f"{threshold:g} times as fast as",
            *(
                f"{each.fast[place].share:.2f} ({each.fast[place].low:.2f} to {each.fast[place].high:.2f})"
                for each in found
            ),
        ]
        for place, threshold in enumerate(THRESHOLDS)
    ]
    return f"fast_p, the share of all problems:\n\n{table(columns, cells)}"


def _least(row: Row) -> float | None:
    if not row.is_valid or row.baselines is None or not row.baselines.seconds:
        return None
    return min(row.baselines.speedups.values())


def _fastest(row: Row) -> str:
    assert row.baselines is not None  # noqa: S101 - `_least` found something
    return min(row.baselines.seconds, key=row.baselines.seconds.__getitem__)


def _found(row: Row, language: Language) -> str:
    """What became of the starts in a language; "ok" if one of them is right, empty without one."""
    found = [each.found for each in row.searched.starts if each.language == language] if row.searched else []
    return "ok" if "ok" in found else "; ".join(found)


def _successes(speedups: Sequence[float | None], threshold: float) -> int:
    return sum(each is not None and each > threshold for each in speedups)


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading, "\n".join(f"- {line}" for line in lines)] if lines else []
