"""The surrogate study: modelled times against measured ones, and what they are worth to a search.

    python -m mctskernel.experiments.surrogate_study FOLDER... --predictions predictions.jsonl --out STUDY.json
    python -m mctskernel.experiments.surrogate_study --from STUDY.json

Each FOLDER is the run of a search on a GPU, or a folder of variants (docs/model_benchmark.md has the form). Nothing is
run on a GPU: times are those that were recorded. Every kernel is priced once; what the file of predictions has isn't
priced again, so the command goes on where it was cut off. Then every space is searched by the real loop, once for each
seed and each way to use predictions. STUDY.md and STUDY.svg are made of STUDY.json alone.

A run only holds edits that its own search chose to try, so what a surrogate would have found among the others isn't
seen: searching a run again understates what a surrogate is worth.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import track

from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace, read_spaces
from mctskernel.experiments.surrogate.accuracy import accuracy
from mctskernel.experiments.surrogate.document import Study, document
from mctskernel.experiments.surrogate.predictions import Predicted, by_space, predict
from mctskernel.experiments.surrogate.replays import CONTENDERS, Pace, replays
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError
from mctskernel.variants import VariantError


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--predictions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where predictions are kept, and read the next time.",
)
@click.option(
    "--architecture",
    type=click.Choice(list(known_architectures())),
    default="H100",
    show_default=True,
    help="The GPU of the recordings.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=2),
    default=60,
    show_default=True,
    help="Kernels of each run, the first.",
)
@click.option(
    "--seeds", type=click.IntRange(min=0), default=20, show_default=True, help="Searches of each kind."
)
@click.option(
    "--in-flight", type=click.IntRange(min=1), default=1, show_default=True, help="Evaluations at a time."
)
@click.option("--pace", type=float, help="Predictions per evaluation that are made in time. [default: all]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The JSON, with a page and a plot beside it.",
)
@click.option(
    "--from",
    "known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON that --out wrote: make its page and its plot again.",
)
def main(
    *,
    folders: tuple[Path, ...],
    predictions: Path | None,
    architecture: str,
    limit: int,
    seeds: int,
    in_flight: int,
    pace: float | None,
    out: Path | None,
    known: Path | None,
) -> None:
    """Compare predictions with what was measured, search with and without them, and print the page."""
    if known is not None:
        show(msgspec.json.decode(known.read_bytes(), type=Study), known)
        return
    if not folders or predictions is None:
        raise click.UsageError("Give folders with recorded times and a file for --predictions, or --from.")
    try:
        spaces = [space.first(limit) for folder in folders for space in read_spaces(folder)]
    except (RunError, JournalError, VariantError) as error:
        raise click.ClickException(str(error)) from error
    names = [space.name for space in spaces]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise click.ClickException(f"Two folders hold a space called {twice[0]}: rename one of them.")
    console = Console(stderr=True)
    total = sum(len(space.evaluations) for space in spaces)
    rows = list(
        track(
            predict(spaces, architecture, predictions),
            "Pricing",
            total,
            console=console,
            disable=not console.is_terminal,
        )
    )
    study = made_study(spaces, rows, seeds, Pace(in_flight, pace), load_architecture(architecture).name)
    if not study.accuracy:
        raise click.ClickException(
            "No space has three kernels with different times that the model could price."
        )
    if out is not None:
        write_result(out, study)
        show(study, out)
    else:
        click.echo(markdown(document(study)))


def made_study(
    spaces: Sequence[RecordedSpace], rows: Sequence[Predicted], seeds: int, pace: Pace, gpu: str
) -> Study:
    """All figures of the study; without seeds no searches are made."""
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
            replays(space, known.get(space.name, {}), contender, seeds, pace)
            for space in plain
            for contender in CONTENDERS
        ),
        tuple(space.name for space in spaces if space.ranked),
    )


def show(study: Study, file: Path) -> None:
    """Write the page and the plot beside the JSON, and print the page."""
    # Imported here: matplotlib is an extra.
    from mctskernel.experiments.surrogate.plot import draw  # noqa: PLC0415 - as said above

    text = markdown(document(study))
    file.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    draw(study, file.with_suffix(".svg"))
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
