"""The surrogate study: how many evaluations predictions save a search of kernels whose times are recorded.

    python -m mctskernel.experiments.model_benchmark FOLDER... --out rows.jsonl
    python -m mctskernel.experiments.surrogate_study FOLDER... --rows rows.jsonl --out STUDY.md

Each FOLDER holds variants (docs/model_benchmark.md has the form), whose modelled times are in the rows. Nothing is run:
every family is searched by the real loop with recorded times, once for each seed, with predictions and without.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Array, Task
from mctskernel.executors.forecaster import Forecaster
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.experiments.json_lines import LineError, read_lines
from mctskernel.experiments.model_tables import Row
from mctskernel.experiments.results import cluster_means, clustered_mean, interval_text, page, table
from mctskernel.experiments.simulated_search import grow
from mctskernel.experiments.variants import Variant, VariantError, measured_kernel, read_variants
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.resampling import Estimate, sign_flip_p
from mctskernel.run import write_text
from mctskernel.tree.policy import Policy
from mctskernel.tree.trajectory import run_seconds

LIMIT = 80
"""Evaluations of a search, at the most."""

TARGETS = (1.05, 1.01)
"""Times over that of the best kernel of the space at which a search has reached it."""

NEAR = 12
FAR = 4
"""Edits of a variant: most lead to variants made with nearly the same values, a few elsewhere, as rules have them."""


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option(
    "--rows",
    "rows_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="What `model_benchmark --out` wrote of the folders.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Searches of each kind."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(*, folders: tuple[Path, ...], rows_file: Path, seeds: int, out: Path) -> None:
    """Search recorded kernels with and without predictions, and write and print the page."""
    try:
        rows = read_lines(rows_file, msgspec.json.Decoder(Row))
        spaces = [space for folder in folders for space in read_spaces(folder, rows)]
    except (LineError, VariantError) as error:
        raise click.ClickException(str(error)) from error
    if not any(space.predictions for space in spaces):
        raise click.ClickException(f"{rows_file} has no modelled time of these folders.")
    text = document([searches(space, seeds) for space in spaces], seeds)
    write_text(out, text + "\n")
    click.echo(text)


@dataclass(frozen=True)
class RecordedSpace:
    """Kernels with their evaluations, predictions, and the edits from one to another, by the kernels' identity."""

    name: str
    task: Task
    kernels: Mapping[str, Kernel]
    evaluations: Mapping[str, Evaluation]
    predictions: Mapping[str, Prediction]
    edits: Mapping[str, tuple[Edit, ...]]

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """The time of each kernel that may be an answer."""
        found = {each: run_seconds(one) for each, one in self.evaluations.items() if is_eligible(one)}
        return {each: seconds for each, seconds in found.items() if seconds}

    def start(self, seed: int) -> Kernel:
        """Where a search begins: at one of the slower half."""
        slower = sorted(self.seconds, key=lambda each: self.seconds[each])[len(self.seconds) // 2 :]
        return self.kernels[slower[int(np.random.default_rng(seed).integers(len(slower)))]]


def read_spaces(folder: Path, rows: Sequence[Row]) -> Iterator[RecordedSpace]:
    """The spaces of the families of a folder of variants. Raises VariantError."""
    predictions = {
        (row.family, row.name): _prediction(row)
        for row in rows
        if row.folder == folder.resolve().name and row.modelled_us
    }
    families = defaultdict(list)
    for variant in read_variants(folder):
        families[variant.family].append(variant)
    for family, variants in families.items():
        yield _space(folder, family, variants, predictions)


def _prediction(row: Row) -> Prediction:
    terms: dict[str, float] = {}
    for launch in row.launches_us:
        for name, microseconds in launch.items():
            terms[name] = terms.get(name, 0.0) + microseconds * 1e-6
    return Prediction((row.modelled_us or 0.0) * 1e-6, terms)


def _space(
    folder: Path,
    family: str,
    variants: Sequence[Variant],
    predictions: Mapping[tuple[str, str], Prediction],
) -> RecordedSpace:
    """Edits lead from a variant to those made with the fewest other values, and to a few of the rest."""
    measured = [(variant, measured_kernel(folder, variant)) for variant in variants]
    edits: dict[str, tuple[Edit, ...]] = {}
    for first, before in measured:
        others = [each for each in measured if each[1].kernel.identity != before.kernel.identity]
        others.sort(key=lambda each: (_changes(first, each[0]), each[0].name))
        near, far = others[:NEAR], others[NEAR:]
        edits[before.kernel.identity] = tuple(
            Edit(Category.TUNING, second.name, WholeSource(after.kernel.source))
            for second, after in (*near, *far[:: max(len(far) // FAR, 1)])
        )
    return RecordedSpace(
        f"{folder.name}/{family}",
        measured[0][1].task,
        {each.kernel.identity: each.kernel for _, each in measured},
        {each.kernel.identity: _evaluation(variant) for variant, each in measured},
        {
            each.kernel.identity: predictions[family, variant.name]
            for variant, each in measured
            if (family, variant.name) in predictions
        },
        edits,
    )


def _changes(first: Variant, second: Variant) -> int:
    before, after = ({"source": each.source, **each.macros, **each.tunables} for each in (first, second))
    return sum(before.get(name) != after.get(name) for name in before.keys() | after.keys())


def _evaluation(variant: Variant) -> Evaluation:
    seconds = (variant.us or 0.0) * 1e-6
    timings = (Timing("", seconds, seconds, seconds),) if variant.outcome is Outcome.OK else ()
    return Evaluation(variant.outcome, Source.RECORDED, timings=timings)


@dataclass
class RecordedProposer:
    """Proposes the edits of a space, in an order drawn from the seed."""

    space: RecordedSpace
    seed: int
    name: str = "recorded"

    def propose(self, request: ProposalRequest) -> Proposals:
        """All edits of the request's kernel."""
        edits = self.space.edits.get(request.kernel.identity, ())
        drawn = np.random.default_rng((self.seed, request.seed)).permutation(len(edits))
        return Proposals(tuple(edits[index] for index in drawn))


@dataclass
class FixedSurrogate:
    """A surrogate whose predictions are known already and cost no time."""

    predictions: Mapping[str, Prediction]
    capacity: int = 4
    asked: int = 0
    _finished: list[tuple[int, Prediction | None]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Make a prediction."""
        self.asked += 1
        self._finished.append((ticket, self.predictions.get(kernel.identity)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:  # noqa: ARG002 - nothing takes time here
        """Return the finished predictions."""
        finished, self._finished = self._finished, []
        return finished

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """The standard deviation of the logarithm of the ratio of two predictions."""
        return log_ratio_sigma(first.terms, second.terms)

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(frozen=True)
class Searches:
    """Searches of a space; arrays have a row for each of `TARGETS` and a column for each seed.

    `without` and `evaluations` are those until the target, without and with predictions, the starting kernel's
    included, or all that were made; `predictions` those that were asked for by then.
    """

    task: str
    without: Array
    evaluations: Array
    predictions: Array


def searches(space: RecordedSpace, seeds: int) -> Searches:
    """Search a space once for each seed, with predictions and without."""
    without = [_searched(space, None, seed)[0] for seed in range(seeds)]
    pairs = [_searched(space, FixedSurrogate(space.predictions), seed) for seed in range(seeds)]
    return Searches(
        space.task.name,
        np.array(without).T,
        np.array([evaluations for evaluations, _ in pairs]).T,
        np.array([predictions for _, predictions in pairs]).T,
    )


def _searched(
    space: RecordedSpace, surrogate: FixedSurrogate | None, seed: int
) -> tuple[list[int], list[int]]:
    """Evaluations and predictions until each target."""
    optimum = min(space.seconds.values())
    best: list[float] = []
    asked: list[int] = []

    def look_up(kernel: Kernel) -> Evaluation:
        ratio = space.seconds.get(kernel.identity, math.inf) / optimum
        best.append(min(ratio, best[-1]) if best else ratio)
        asked.append(surrogate.asked if surrogate else 0)
        return space.evaluations[kernel.identity]

    grow(
        space.start(seed),
        task=space.task,
        policy=Policy(),
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=RecordedExecutor(look_up, {}),
        budget=min(LIMIT, len(space.evaluations)),
        forecaster_of=(lambda search: Forecaster(search, surrogate, wait=True)) if surrogate else None,
        stop_requested=lambda: bool(best) and best[-1] <= TARGETS[-1],
    )
    reached = [
        next((number for number, each in enumerate(best, 1) if each <= target), len(best))
        for target in TARGETS
    ]
    return reached, [asked[count - 1] for count in reached]


def document(found: Sequence[Searches], seeds: int) -> str:
    """Make the page."""
    tasks = [each.task for each in found]
    rows = []
    for place, target in enumerate(TARGETS):
        without, evaluations, predictions = (
            np.array([getattr(each, name)[place] for each in found], dtype=float)
            for name in ("without", "evaluations", "predictions")
        )
        fewer = np.log(without / evaluations).mean(axis=1)
        ratio = clustered_mean(fewer.tolist(), tasks)
        rows.append(
            [
                f"within {target - 1:.0%}",
                *(f"{each.mean():.1f}" for each in (without, evaluations, predictions)),
                interval_text(Estimate(*map(math.exp, (ratio.mean, ratio.low, ratio.high))), ".2f"),
                f"{sign_flip_p(cluster_means(fewer.tolist(), tasks)):.3f}",
            ]
        )
    lead = (
        f"Searches of {len(found)} families of variants, {seeds} seeds each, until the best kernel is reached. "
        "Evaluations are the GPU's, the starting kernel's among them. Times fewer: the geometric mean over spaces and "
        "seeds, paired by seed; p flips the signs of the tasks' means. Intervals are of 95 %, from bootstrap draws of "
        "whole tasks."
    )
    head = ["best kernel", "evaluations, off", "with predictions", "predictions", "times fewer", "p"]
    return page("What predictions save a search", lead, table(head, rows))


if __name__ == "__main__":
    sys.exit(main())
