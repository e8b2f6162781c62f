"""Tables of what searches found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mctskernel.core.task import Array
from mctskernel.experiments.strategies.traces import Trace, by_space, shares
from mctskernel.report.resampling import Estimate, estimate

Figures = Mapping[str, Mapping[str, Sequence[Trace]]]
"""Traces by contender, then by space."""


def figures(traces: Iterable[Trace]) -> Figures:
    """Traces by contender, in order of appearance, then by space."""
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        found.setdefault(trace.contender, []).append(trace)
    return {contender: by_space(each) for contender, each in found.items()}


def shares_table(traces: Sequence[Trace], at: Sequence[int]) -> str:
    """A row for each contender: shares after so many evaluations, by space, and their mean with its interval.

    The best mean at the last of `at` comes first; a contender that lacks a space comes last, without a mean.
    """
    spaces, rows = list(by_space(traces)), []
    for contender, found in figures(traces).items():
        cells = [_shares_cell(found[space], at) if space in found else "" for space in spaces]
        whole = len(found) == len(spaces)
        means = [estimate([shares(each, count) for each in found.values()]) for count in at] if whole else []
        seeds = min(len(each) for each in found.values())
        seconds = float(np.mean([trace.seconds for each in found.values() for trace in each]))
        rank = -means[-1].mean if means else 1.0
        row = (
            f"`{contender}`",
            *cells,
            *(_interval(each) for each in means or ()),
            *[""] * (0 if means else len(at)),
        )
        rows.append((rank, (*row, str(seeds), f"{seconds:.1f}")))
    head = ("strategy", *spaces, *(f"mean after {count}" for count in at), "seeds", "seconds a search")
    return markdown(head, [row for _, row in sorted(rows, key=lambda each: each[0])])


def means_table(traces: Sequence[Trace], at: Sequence[int]) -> str:
    """A row for each contender that searched every space: mean shares with their intervals, and the worst space."""
    spaces, rows = list(by_space(traces)), []
    for contender, found in figures(traces).items():
        if len(found) < len(spaces):
            continue
        means = [estimate([shares(each, count) for each in found.values()]) for count in at]
        last = {space: float(shares(each, at[-1]).mean()) for space, each in found.items()}
        worst = min(last, key=lambda space: last[space])
        seeds = min(map(len, found.values()))
        row = (f"`{contender}`", *map(_interval, means), f"{last[worst]:.3f} ({worst})", str(seeds))
        rows.append((-means[-1].mean, row))
    counts = (f"mean of {len(spaces)} after {count}" for count in at)
    head = ("strategy", *counts, f"worst after {at[-1]}", "seeds")
    return markdown(head, [row for _, row in sorted(rows, key=lambda each: each[0])])


def asynchrony_table(traces: Sequence[Trace], in_flight: int, at: Sequence[int]) -> str:
    """A row for each contender: what `in_flight` at a time lose against one, in percentage points; below 0, a loss.

    Searches are paired by seed, which is where they start. There is a mean where every space was searched both ways.
    """
    spaces, rows = list(by_space(traces)), []
    for contender, found in figures(traces).items():
        differences = {space: _paired(each, in_flight, at) for space, each in found.items()}
        differences = {space: each for space, each in differences.items() if len(each)}
        if not differences:
            continue
        for column, count in enumerate(at):
            of_spaces = {space: 100 * each[:, column] for space, each in differences.items()}
            cells = [_points(estimate([of_spaces[space]])) if space in of_spaces else "" for space in spaces]
            mean = _points(estimate(list(of_spaces.values()))) if len(of_spaces) == len(spaces) else ""
            rows.append((f"`{contender}`", str(count), *cells, mean, str(min(map(len, of_spaces.values())))))
    return markdown(("strategy", "evaluations", *spaces, "mean", "seeds"), rows)


def leave_one_out_table(traces: Sequence[Trace], at: Sequence[int]) -> str:
    """A row for each space: the contender that does best on all others, its share in this one, and the best there.

    What does best has the highest share, on average over the other spaces and over `at`.
    """
    spaces = list(by_space(traces))
    known = {contender: each for contender, each in figures(traces).items() if len(each) == len(spaces)}
    if len(spaces) < 2 or not known:
        return "Leaving one out takes two spaces, and a strategy that searched them all."
    rows, chosen_shares, best_shares = [], [], []
    for space in spaces:
        others = [each for each in spaces if each != space]
        chosen = _best(known, others, at)
        best = _best(known, [space], at)
        chosen_shares.append([shares(known[chosen][space], count) for count in at])
        best_shares.append([shares(known[best][space], count) for count in at])
        rows.append((space, f"`{chosen}`", *_last(chosen_shares, at), f"`{best}`", *_last(best_shares, at)))
    means = [_mean_column(each, at) for each in (chosen_shares, best_shares)]
    rows.append(("mean", "", *means[0], "", *means[1]))
    counts = [f"after {count}" for count in at]
    return markdown(("space", "best on the others", *counts, "best here", *counts), rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shares_cell(traces: Sequence[Trace], at: Sequence[int]) -> str:
    found = [estimate([shares(traces, count)]) for count in at]
    last = found[-1]
    return f"{' / '.join(f'{each.mean:.3f}' for each in found)} ± {(last.high - last.low) / 2:.3f}"


def _interval(found: Estimate) -> str:
    return f"**{found.mean:.3f}** ({found.low:.3f} to {found.high:.3f})"


def _points(found: Estimate) -> str:
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def _paired(traces: Iterable[Trace], in_flight: int, at: Sequence[int]) -> Array:
    """A row for each seed that was searched both ways, a column for each number of evaluations."""
    alone: dict[int, Trace] = {}
    beside: dict[int, Trace] = {}
    for trace in traces:
        if trace.in_flight in (1, in_flight):
            (alone if trace.in_flight == 1 else beside)[trace.seed] = trace
    both = sorted(alone.keys() & beside.keys())
    return np.array([[beside[seed].share(count) - alone[seed].share(count) for count in at] for seed in both])


def _best(known: Figures, spaces: Iterable[str], at: Sequence[int]) -> str:
    def mean(contender: str) -> float:
        return float(
            np.mean([shares(known[contender][space], count).mean() for space in spaces for count in at])
        )

    return max(known, key=mean)


def _last(columns: Sequence[Sequence[Array]], at: Sequence[int]) -> list[str]:
    return [f"{columns[-1][number].mean():.3f}" for number in range(len(at))]


def _mean_column(columns: Sequence[Sequence[Array]], at: Sequence[int]) -> list[str]:
    return [_interval(estimate([each[number] for each in columns])) for number in range(len(at))]
