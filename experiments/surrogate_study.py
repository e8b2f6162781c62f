"""The surrogate study: modelled times against measured ones, and how many evaluations predictions save a search.

    python -m mctskernel.experiments.surrogate_study FOLDER... --predictions predictions.jsonl --out STUDY.json

Each FOLDER is the run of a search on a GPU, or a folder of variants (docs/model_benchmark.md has the form). Nothing is
run on a GPU: times are those that were recorded. Every kernel is priced once: the file of predictions is read again, so
the command continues where it was interrupted. Then every space is searched by the real loop, once for each seed and
each contender. The page, STUDY.md, is written beside the JSON.

A run only holds edits that its own search chose to try, so searching a run again understates the value of a surrogate.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track

from mctskernel.experiments.recorded_spaces import RecordedSpace, read_spaces
from mctskernel.experiments.results import interval_text, page, table, write_result
from mctskernel.experiments.surrogate_accuracy import (
    LEVELS,
    Accuracy,
    Predicted,
    accuracy,
    by_space,
    pooled,
    predict,
)
from mctskernel.experiments.surrogate_replays import (
    CHECKPOINTS,
    CONTENDERS,
    EVALUATION_SECONDS,
    TARGETS,
    Replays,
    Savings,
    replays,
    savings,
)
from mctskernel.experiments.variants import VariantError
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError


class Study(msgspec.Struct, frozen=True):
    """A study: the GPU that was modelled, how accurate predictions were by space, and searches with them.

    `prediction_seconds` are CPU seconds of a prediction, the mean of each space. `runs` names the spaces that are
    recorded searches; the others are families of variants.
    """

    gpu: str
    accuracy: tuple[Accuracy, ...]
    prediction_seconds: dict[str, float]
    seeds: int
    replays: tuple[Replays, ...]
    runs: tuple[str, ...]


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option(
    "--predictions",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File of the predictions: read, and completed.",
)
@click.option(
    "--architecture",
    type=click.Choice(list(known_architectures())),
    default="H100",
    show_default=True,
    help="The GPU of the recordings.",
)
@click.option(
    "--seeds", type=click.IntRange(min=0), default=20, show_default=True, help="Searches of each kind."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(*, folders: tuple[Path, ...], predictions: Path, architecture: str, seeds: int, out: Path) -> None:
    """Compare predictions with measurements, search with and without them, and print the page."""
    try:
        spaces = [space for folder in folders for space in read_spaces(folder)]
    except (RunError, JournalError, VariantError) as error:
        raise click.ClickException(str(error)) from error
    names = [space.name for space in spaces]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise click.ClickException(f"Two folders hold a space called {twice[0]}: rename one of them.")
    console = Console(stderr=True)
    total = sum(len(space.evaluations) for space in spaces)
    pricing = predict(spaces, architecture, predictions)
    rows = list(track(pricing, "Pricing", total, console=console, disable=not console.is_terminal))
    study = made_study(spaces, rows, seeds, load_architecture(architecture).name)
    if not study.accuracy:
        raise click.ClickException(
            "No space has three kernels with different times that the model could price."
        )
    write_result(out, study)
    text = document(study)
    out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


def made_study(spaces: Sequence[RecordedSpace], rows: Sequence[Predicted], seeds: int, gpu: str) -> Study:
    """Compute all figures; without seeds no searches are made."""
    known = by_space(rows)
    found = [accuracy(space, known.get(space.name, {})) for space in spaces]
    costs: dict[str, list[float]] = {}
    for row in rows:
        costs.setdefault(row.space, []).append(row.cpu_seconds)
    plain = [space.without_texts() for space in spaces] if seeds else []
    return Study(
        gpu,
        tuple(each for each in found if each is not None),
        {space: statistics.fmean(seconds) for space, seconds in costs.items()},
        seeds,
        tuple(
            replays(space, known.get(space.name, {}), contender, seeds)
            for space in plain
            for contender in CONTENDERS
        ),
        tuple(space.name for space in spaces if space.ranked),
    )


def document(study: Study) -> str:
    """Make the page."""
    kernels = sum(each.kernels for each in study.accuracy)
    blocks = [
        f"{kernels} kernels that were timed on {study.gpu} or its like, and the model's times for them. Intervals are "
        "of 95 %, from 2000 bootstrap draws of whole tasks.",
        "## How well modelled times rank measured ones",
        _ranking(study),
        "First pick: the time of the kernel that the model ranks first, over that of the fastest; best of 5: the same "
        "of the best among its first five.",
        "## Whether the stated uncertainty is right",
        _calibration(study),
        "The share of pairs of kernels of a space whose measured ratio lies in the interval that the model states; the "
        "last column is the root mean square of the error over the stated deviation, 1 where that is right.",
    ]
    for title, group in _groups(study, [each.space for each in study.replays]):
        blocks += [f"## Searches of {title}", *_searches(study, group)]
    return page("The surrogate against measurements", *blocks)


def _groups(study: Study, spaces: Sequence[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Families of variants and runs, each if there are any: the title, and the spaces."""
    runs = frozenset(study.runs)
    for kind, group in (
        ("families of variants", frozenset(spaces) - runs),
        ("recorded runs", runs & frozenset(spaces)),
    ):
        if group:
            yield f"{len(group)} {kind}", group


def _pools(study: Study) -> Iterator[tuple[str, list[Accuracy]]]:
    for title, group in _groups(study, [each.space for each in study.accuracy]):
        yield title, [each for each in study.accuracy if each.space in group]


def _ranking(study: Study) -> str:
    columns = ["space", "kernels", "Spearman", "first pick", "best of 5", "CPU s a prediction"]
    rows = [
        [
            each.space,
            str(each.kernels),
            *(f"{figure:.3f}" for figure in (each.spearman, each.first, each.best_of_five)),
            f"{study.prediction_seconds[each.space]:.2f}",
        ]
        for each in study.accuracy
    ]
    for title, members in _pools(study):
        mean = pooled(members)
        figures = (interval_text(each, ".3f") for each in (mean.spearman, mean.first, mean.best_of_five))
        rows.append([f"mean of {title}", str(mean.kernels), *figures, ""])
    return table(columns, rows)


def _calibration(study: Study) -> str:
    rows = [
        [each.space, *(f"{share:.0%}" for share in each.coverage), f"{each.error_in_sigmas:.2f}"]
        for each in study.accuracy
    ]
    for title, members in _pools(study):
        mean = pooled(members)
        shares = (interval_text(each, ".0%") for each in mean.coverage)
        rows.append([f"mean of {title}", *shares, interval_text(mean.error_in_sigmas, ".3f")])
    return table(["space", *(f"in the {level:.0%} interval" for level in LEVELS), "error in sigmas"], rows)


def _searches(study: Study, group: frozenset[str]) -> list[str]:
    found = savings([each for each in study.replays if each.space in group], study.prediction_seconds)
    return [
        f"{study.seeds} seeds each. Evaluations are the GPU's, the starting kernel's among them. Times fewer: those "
        "without a surrogate over those with it, the geometric mean over spaces and seeds, paired by seed; p flips the "
        "signs of the tasks' means.",
        _evaluations(found),
        "The best kernel's time over that of the space's best, after so many evaluations:",
        table(
            ["search", *(f"after {count}" for count in CHECKPOINTS)],
            [[each.contender, *(f"{ratio:.3f}" for ratio in each.best)] for each in found],
        ),
        "Seconds to within 5 % without a surrogate over those with it, by the cost of an evaluation, if every "
        "prediction is waited for on one core:",
        table(
            ["search", *(f"{cost:g} s" for cost in EVALUATION_SECONDS)],
            [[each.contender, *(f"{speedup:.2f}x" for speedup in each.speedups)] for each in found],
        ),
    ]


def _evaluations(found: Sequence[Savings]) -> str:
    columns = ["search"]
    for target in TARGETS:
        columns += [f"to within {target - 1:.0%}", "predictions", "times fewer", "p"]
    rows = []
    for each in found:
        cells = [each.contender]
        for place in range(len(TARGETS)):
            cells += [f"{each.evaluations[place]:.1f}", f"{each.predictions[place]:.1f}"]
            cells += [interval_text(each.ratios[place], ".2f"), f"{each.p[place]:.3f}"]
        rows.append(cells)
    return table(columns, rows)


if __name__ == "__main__":
    sys.exit(main())
