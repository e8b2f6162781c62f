"""The surrogate study: how many evaluations predictions save a search of kernels whose times are recorded.

    python -m mctskernel.experiments.surrogate_study FOLDER... --predictions predictions.jsonl --out STUDY.json

Each FOLDER holds variants (docs/model_benchmark.md has the form; `experiments.record --from-run` makes one of a run).
Nothing is run on a GPU: times are those that were recorded. Every kernel is priced once: the file of predictions is
read again, so the command continues where it was interrupted. Then every space is searched by the real loop, once for
each seed and each contender. The page, STUDY.md, is written beside the JSON.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.executor import Prediction
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.core.task import Task
from mctskernel.executors.forecaster import Forecaster
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.experiments.json_lines import LineLog, read_lines
from mctskernel.experiments.results import (
    Interval,
    cluster_means,
    clustered_mean,
    interval_text,
    page,
    table,
    write_result,
)
from mctskernel.experiments.simulated_search import grow
from mctskernel.experiments.variants import Variant, VariantError, measured_kernel, read_variants
from mctskernel.profiling.architecture import known_architectures, load_architecture
from mctskernel.profiling.model.price import log_ratio_sigma
from mctskernel.profiling.pricing import PricingDevice, prediction_of
from mctskernel.profiling.reward import is_eligible
from mctskernel.report.resampling import sign_flip_p
from mctskernel.tree.policy import Policy
from mctskernel.tree.trajectory import run_seconds

LIMIT = 80
"""Evaluations of a search, at the most."""

CHECKPOINTS = (5, 10, 20, 40)
"""Evaluations after which the best kernel is reported."""

TARGETS = (1.05, 1.01)
"""Times over that of the best kernel of the space at which a search has reached it."""

EVALUATION_SECONDS = (0.2, 1.0, 10.0, 60.0)
"""What an evaluation may cost, from a kernel on an H100 to a build that takes a minute."""

NEAR = 12
FAR = 4
"""Edits of a variant: most lead to variants made with nearly the same values, a few elsewhere, as rules have them."""

Known = Mapping[str, Prediction | None]
"""Predictions of a space by the identity of a kernel; None where the model has none."""


class Predicted(msgspec.Struct, frozen=True):
    """A prediction for a kernel: seconds, None where the model has none, and its terms.

    `cpu_seconds` include the compilers and disassemblers that it started.
    """

    space: str
    kernel: str
    seconds: float | None
    terms: dict[str, float]
    cpu_seconds: float = 0.0


class Replays(msgspec.Struct, frozen=True):
    """Searches of a space in one way, a column for each seed.

    `evaluations` and `predictions` are those until the best of the space was reached to within each of `TARGETS`, the
    starting kernel's evaluation included; where it wasn't, all that were made. `best` is the time of the best kernel
    found over that of the space's after each of `CHECKPOINTS`. A search ends at the last target.
    """

    space: str
    task: str
    contender: str
    evaluations: tuple[tuple[int, ...], ...]
    predictions: tuple[tuple[int, ...], ...]
    best: tuple[tuple[float, ...], ...]


class Study(msgspec.Struct, frozen=True):
    """A study: the GPU that was modelled, and the searches.

    `prediction_seconds` are CPU seconds of a prediction, the mean of each space.
    """

    gpu: str
    prediction_seconds: dict[str, float]
    seeds: int
    replays: tuple[Replays, ...]


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
    "--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Searches of each kind."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(*, folders: tuple[Path, ...], predictions: Path, architecture: str, seeds: int, out: Path) -> None:
    """Search recorded kernels with and without predictions, and print the page."""
    try:
        spaces = [space for folder in folders for space in read_spaces(folder)]
    except VariantError as error:
        raise click.ClickException(str(error)) from error
    names = [space.name for space in spaces]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise click.ClickException(f"Two folders hold a space called {twice[0]}: rename one of them.")
    console = Console(stderr=True)
    total = sum(len(space.evaluations) for space in spaces)
    pricing = predict(spaces, architecture, predictions)
    rows: dict[str, list[Predicted]] = {name: [] for name in names}
    for row in track(pricing, "Pricing", total, console=console, disable=not console.is_terminal):
        rows[row.space].append(row)
    study = Study(
        load_architecture(architecture).name,
        {name: statistics.fmean(row.cpu_seconds for row in found) for name, found in rows.items()},
        seeds,
        tuple(
            replays(space, _predictions(rows[space.name]), contender, seeds)
            for space in spaces
            for contender in CONTENDERS
        ),
    )
    write_result(out, study)
    text = document(study)
    out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


@dataclass(frozen=True)
class RecordedSpace:
    """Kernels with their evaluations, and the edits that lead from one to another, all by the kernels' identity.

    `tasks` says what each kernel was judged by, at its own shape.
    """

    name: str
    task: Task
    kernels: Mapping[str, Kernel]
    evaluations: Mapping[str, Evaluation]
    edits: Mapping[str, tuple[Edit, ...]]
    tasks: Mapping[str, Task]

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """The time of each kernel that may be an answer."""
        found = {
            each: run_seconds(judged) for each, judged in self.evaluations.items() if is_eligible(judged)
        }
        return {each: seconds for each, seconds in found.items() if seconds}

    def start(self, seed: int) -> Kernel:
        """Where a search begins: at one of the slower half."""
        slower = sorted(self.seconds, key=lambda each: self.seconds[each])[len(self.seconds) // 2 :]
        return self.kernels[slower[int(np.random.default_rng(seed).integers(len(slower)))]]


def read_spaces(folder: Path) -> Iterator[RecordedSpace]:
    """The spaces of the families of a folder of variants. Raises VariantError."""
    families = defaultdict(list)
    for variant in read_variants(folder):
        families[variant.family].append(variant)
    for name, variants in families.items():
        yield _space(folder, name, variants)


def _space(folder: Path, family: str, variants: list[Variant]) -> RecordedSpace:
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
        family if folder.name == family else f"{folder.name}/{family}",
        measured[0][1].task,
        {each.kernel.identity: each.kernel for _, each in measured},
        {each.kernel.identity: _evaluation(variant) for variant, each in measured},
        edits,
        {each.kernel.identity: each.task for _, each in measured},
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


def predict(spaces: Iterable[RecordedSpace], architecture: str, cache: Path) -> Iterator[Predicted]:
    """Yield a row for every kernel of the spaces: from the file where it has one, otherwise priced and appended."""
    gpu = load_architecture(architecture)
    known = {(row.space, row.kernel): row for row in read_lines(cache, msgspec.json.Decoder(Predicted))}
    log = LineLog[Predicted](cache)
    for space in spaces:
        task, device = space.task, PricingDevice(space.task, gpu)
        for identity in space.evaluations:
            row = known.get((space.name, identity))
            if row is None:
                if space.tasks[identity] is not task:
                    task = space.tasks[identity]
                    device = PricingDevice(task, gpu)
                began = sum(os.times()[:4])
                found = prediction_of(device.evaluate(space.kernels[identity]))
                seconds, terms = (found.seconds, dict(found.terms)) if found else (None, {})
                row = Predicted(space.name, identity, seconds, terms, sum(os.times()[:4]) - began)
                log.append(row)
            yield row


def _predictions(rows: Iterable[Predicted]) -> Known:
    return {row.kernel: Prediction(row.seconds, row.terms) if row.seconds else None for row in rows}


@dataclass
class FixedSurrogate:
    """A surrogate whose predictions are known already and cost no time."""

    predictions: Known
    sigma: Callable[[Prediction, Prediction], float]
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
        return self.sigma(first, second)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _modelled(_space: RecordedSpace, known: Known) -> FixedSurrogate:
    return FixedSurrogate(known, lambda first, second: log_ratio_sigma(first.terms, second.terms))


def _perfect(space: RecordedSpace, _known: Known) -> FixedSurrogate:
    measured = {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()}
    return FixedSurrogate(measured, lambda _first, _second: 0.01)


OFF = "off"

CONTENDERS: Mapping[str, Callable[[RecordedSpace, Known], FixedSurrogate] | None] = {
    OFF: None,
    "model": _modelled,
    "perfect": _perfect,
}
"""Ways to search: the surrogate of a space, None for a search without."""


def replays(space: RecordedSpace, known: Known, contender: str, seeds: int) -> Replays:
    """Search a space once for each seed."""
    found = [_searched(space, known, contender, seed) for seed in range(seeds)]
    reached = [[_reached(best, target) for best, _ in found] for target in TARGETS]
    return Replays(
        space.name,
        space.task.name,
        contender,
        tuple(map(tuple, reached)),
        tuple(
            tuple(asked[count - 1] for count, (_, asked) in zip(row, found, strict=True)) for row in reached
        ),
        tuple(tuple(round(best[min(count, len(best)) - 1], 4) for best, _ in found) for count in CHECKPOINTS),
    )


def _reached(best: Sequence[float], target: float) -> int:
    """Evaluations until a target."""
    return next((number for number, each in enumerate(best, 1) if each <= target), len(best))


def _searched(space: RecordedSpace, known: Known, contender: str, seed: int) -> tuple[list[float], list[int]]:
    """After each evaluation: the best time so far over that of the space, and predictions asked for."""
    surrogate_of = CONTENDERS[contender]
    surrogate = surrogate_of(space, known) if surrogate_of else None
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
    return best, asked


@dataclass(frozen=True)
class Savings:
    """A way to search, over some spaces; pairs and triples are until each of `TARGETS`.

    `evaluations` and `predictions` are means. `ratios` are evaluations without a surrogate over those with it, the
    geometric mean over spaces and seeds, whole tasks drawn again; `p` flips the signs of the tasks' means. `best` is
    the geometric mean of the best time over that of the space after each of `CHECKPOINTS`. `speedups` are seconds
    without a surrogate over those with it, until the first target, for each of `EVALUATION_SECONDS`, if each prediction
    is waited for on one core.
    """

    contender: str
    evaluations: tuple[float, ...]
    predictions: tuple[float, ...]
    ratios: tuple[Interval, ...]
    p: tuple[float, ...]
    best: tuple[float, ...]
    speedups: tuple[float, ...]


def savings(found: Sequence[Replays], prediction_seconds: Mapping[str, float]) -> list[Savings]:
    """Compare each contender with the search without a surrogate, which must be there, on the same spaces and seeds."""
    by_contender: dict[str, dict[str, Replays]] = {}
    for each in found:
        by_contender.setdefault(each.contender, {})[each.space] = each
    off = by_contender[OFF]
    cost = np.array([prediction_seconds.get(space, 0.0) for space in off])
    tasks = [each.task for each in off.values()]
    # Axes: space, target, seed.
    without = np.array([each.evaluations for each in off.values()])
    rows = []
    for contender, by_space in by_contender.items():
        ordered = [by_space[space] for space in off]
        evaluations = np.array([each.evaluations for each in ordered])
        predictions = np.array([each.predictions for each in ordered])
        fewer = np.log(without / evaluations).mean(axis=2).T
        ratios = [clustered_mean(each.tolist(), tasks) for each in fewer]
        waited = float(cost @ predictions[:, 0].mean(axis=1))
        before, after = (float(each[:, 0].mean(axis=1).sum()) for each in (without, evaluations))
        rows.append(
            Savings(
                contender,
                tuple(evaluations.mean(axis=(0, 2)).tolist()),
                tuple(predictions.mean(axis=(0, 2)).tolist()),
                tuple(Interval(*map(math.exp, (each.mean, each.low, each.high))) for each in ratios),
                tuple(sign_flip_p(cluster_means(each.tolist(), tasks)) for each in fewer),
                tuple(np.exp(np.log([each.best for each in ordered]).mean(axis=(0, 2))).tolist()),
                tuple(before * each / (after * each + waited) for each in EVALUATION_SECONDS),
            )
        )
    return rows


def document(study: Study) -> str:
    """Make the page."""
    found = savings(study.replays, study.prediction_seconds)
    lead = (
        f"Searches of kernels that were timed on {study.gpu} or its like: "
        f"{len(study.prediction_seconds)} families of variants, {study.seeds} seeds each. Evaluations are "
        "the GPU's, the starting kernel's among them. Times fewer: those without a surrogate over those with it, the "
        "geometric mean over spaces and seeds, paired by seed; p flips the signs of the tasks' means. Intervals are of "
        "95 %, from 2000 bootstrap draws of whole tasks."
    )
    return page(
        "What predictions save a search",
        lead,
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
    )


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
