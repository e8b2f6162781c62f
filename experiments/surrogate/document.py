"""What the surrogate study found, and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mctskernel.experiments.records.cluster_bootstrap import Interval
from mctskernel.experiments.records.documents import Block, Document, Section, Table, Text
from mctskernel.experiments.surrogate.accuracy import LEVELS, Accuracy, pooled
from mctskernel.experiments.surrogate.replays import CHECKPOINTS, TARGETS, Replays
from mctskernel.experiments.surrogate.worth import EVALUATION_SECONDS, Worth, worth

SHOWN_LEVELS = (0.5, 0.8, 0.95)
"""Intervals whose coverage the table has; the plot has all."""


class Study(msgspec.Struct, frozen=True):
    """A study: the GPU that was modelled, how accurate predictions were by space, and searches with them.

    `prediction_seconds` are CPU seconds of a prediction, the mean of each space. Spaces named in `runs` are of searches
    and the others of variants.
    """

    gpu: str
    accuracy: tuple[Accuracy, ...]
    prediction_seconds: dict[str, float]
    seeds: int
    replays: tuple[Replays, ...]
    runs: tuple[str, ...]


def document(study: Study) -> Document:
    """The page."""
    sections = [
        Section("How well modelled times rank measured ones", _ranking(study)),
        Section("Whether the model errs as much as it says", _calibration(study)),
    ]
    if study.replays:
        sections += [
            Section(f"Searches of {name}", _searches(study, group))
            for name, group in _groups(study, [each.space for each in study.replays])
        ]
    kernels = sum(each.kernels for each in study.accuracy)
    lead = Text(
        f"{kernels} kernels that were timed on {study.gpu} or its like, and the model's times for them. Intervals are "
        "of 95 %, from 2000 bootstrap draws of whole tasks."
    )
    return Document("The surrogate against measurements", sections, [lead])


def _groups(study: Study, spaces: Sequence[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Runs and families of variants, each if there are any: the title, and the spaces."""
    runs = frozenset(study.runs)
    for kind, group in (
        ("families of variants", frozenset(spaces) - runs),
        ("recorded runs", runs & frozenset(spaces)),
    ):
        if group:
            yield f"{len(group)} {kind}", group


def _ranking(study: Study) -> list[Block]:
    columns = ["space", "kernels", "Spearman", "Kendall", "first pick", "best of 5", "CPU s a prediction"]
    rows = [
        [
            each.space,
            str(each.kernels),
            f"{each.spearman:.3f}",
            f"{each.kendall:.3f}",
            f"{each.first:.3f}",
            f"{each.best_of_five:.3f}",
            f"{study.prediction_seconds[each.space]:.2f}",
        ]
        for each in study.accuracy
    ]
    for title, members in _pools(study):
        mean = pooled(members)
        figures = (mean.spearman, mean.kendall, mean.first, mean.best_of_five)
        rows.append([f"mean of {title}", str(mean.kernels), *map(_interval, figures), ""])
    return [
        Table(columns, rows),
        Text(
            "First pick: what the kernel that the model holds for the fastest takes, over the fastest; best of 5: the "
            "same of the best among its first five."
        ),
    ]


def _calibration(study: Study) -> list[Block]:
    columns = ["space", *(f"in the {level:.0%} interval" for level in SHOWN_LEVELS), "error in sigmas"]
    places = [LEVELS.index(level) for level in SHOWN_LEVELS]
    rows = [
        [each.space, *(f"{each.coverage[place]:.0%}" for place in places), f"{each.error_in_sigmas:.2f}"]
        for each in study.accuracy
    ]
    for title, members in _pools(study):
        mean = pooled(members)
        shares = (mean.coverage[place] for place in places)
        rows.append([f"mean of {title}", *map(_shares, shares), _interval(mean.error_in_sigmas)])
    return [
        Table(columns, rows),
        Text(
            "Of pairs of kernels of a space, how many measured ratios lie in the interval that the model states; the "
            "last column is the root mean square of the error over the stated deviation, 1 where that is right."
        ),
    ]


def _pools(study: Study) -> Iterator[tuple[str, list[Accuracy]]]:
    groups = list(_groups(study, [each.space for each in study.accuracy]))
    for title, group in groups:
        yield title, [each for each in study.accuracy if each.space in group]
    if len(groups) > 1:
        yield f"all {len(study.accuracy)}", list(study.accuracy)


def _searches(study: Study, group: frozenset[str]) -> list[Block]:
    found = worth([each for each in study.replays if each.space in group], study.prediction_seconds)
    return [
        Text(
            f"{study.seeds} seeds each. Evaluations are the GPU's, the starting kernel's among them. Times fewer: "
            "those without a surrogate over those with it, the geometric mean over spaces and seeds, paired by seed; p "
            "flips the signs of the tasks' means."
        ),
        _evaluations(found),
        Text("The best kernel's time over that of the space's best, after so many evaluations:"),
        _quality(found),
        Text(
            "Seconds to within 5 % without a surrogate over those with it, when an evaluation takes so long and every "
            "prediction is waited for on one core; and from which cost of an evaluation on it pays:"
        ),
        _seconds(found),
    ]


def _evaluations(found: Sequence[Worth]) -> Table:
    columns = ["search"]
    for target in TARGETS:
        columns += [f"to within {target - 1:.0%}", "predictions", "times fewer", "p"]
    rows = []
    for each in found:
        cells = [each.contender]
        for saved in each.saved:
            cells += [
                f"{saved.evaluations:.1f}",
                f"{saved.predictions:.1f}",
                _interval(saved.ratio, 2),
                f"{saved.p:.3f}",
            ]
        rows.append(cells)
    return Table(columns, rows)


def _quality(found: Sequence[Worth]) -> Table:
    columns = ["search", *(f"after {count}" for count in CHECKPOINTS)]
    return Table(columns, [[each.contender, *(f"{ratio:.3f}" for ratio in each.best)] for each in found])


def _seconds(found: Sequence[Worth]) -> Table:
    columns = ["search", *(f"{cost:g} s" for cost in EVALUATION_SECONDS), "pays from"]
    return Table(
        columns,
        [
            [
                each.contender,
                *(f"{speedup:.2f}x" for speedup in each.speedups),
                f"{each.break_even_seconds:.2f} s" if each.break_even_seconds is not None else "never",
            ]
            for each in found
        ],
    )


def _interval(found: Interval, digits: int = 3) -> str:
    return f"{found.mean:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _shares(found: Interval) -> str:
    return f"{found.mean:.0%} ({found.low:.0%} to {found.high:.0%})"
