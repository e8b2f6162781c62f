"""What a surrogate is worth to a search: recorded spaces searched again, with and without predictions.

    python -m mctskernel.experiments.surrogate_value predict FOLDER... --out predictions.jsonl
    python -m mctskernel.experiments.surrogate_value replay FOLDER... --predictions predictions.jsonl

Each FOLDER is the run of a search on a GPU, or a folder of variants (docs/model_benchmark.md has the form). Nothing is
run: times are those that were recorded. `predict` prices every kernel once, which takes about half a second each, and
goes on where it was cut off. `replay` searches each space with the real loop and prints, for each number of
evaluations, the time of the best kernel found over that of the best of the space: the geometric mean over spaces and
seeds; then evaluations until it is within 5 % of the best, and kernels predicted for each one evaluated. A run only
holds edits that its own search chose to try, so what a surrogate would have found among the others isn't seen:
replaying a run understates its worth.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction, SurrogateUse
from mctskernel.experiments.recorded_spaces import (
    RecordedProposer,
    RecordedSpace,
    executor_of,
    read_spaces,
)
from mctskernel.experiments.simulated_search import ForecasterOf, grow
from mctskernel.forecast import Forecaster
from mctskernel.predictions import Predictions
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model.uncertainty import log_ratio_sigma
from mctskernel.profiling.surrogate import PricingDevice, prediction_of
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch

CHECKPOINTS = (5, 10, 20, 40, 80)

RANDOM_SIGMA = 0.5
"""Standard deviation of the logarithm of a time that a surrogate makes up."""

folders_argument = click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)


class Predicted(msgspec.Struct, frozen=True):
    """What the model said of a kernel: seconds, None where it has no opinion, and its terms."""

    space: str
    kernel: str
    seconds: float | None
    terms: dict[str, float]


@dataclass(frozen=True)
class Replayed:
    """The best time after each evaluation over the best of the space, and predictions asked for per evaluation."""

    ratios: tuple[float, ...]
    predictions: float


@dataclass(frozen=True)
class Pace:
    """Evaluations in flight, and predictions that are made while one finishes; None: they are waited for."""

    in_flight: int = 1
    predictions: float | None = None


@dataclass
class LookedUp:
    """A surrogate that knows its predictions already, and gives as many of them as it `may` by now."""

    predictions: Callable[[Kernel], Prediction | None]
    sigma: Callable[[Prediction, Prediction], float]
    capacity: int = 4
    asked: int = 0
    may: Callable[[], float] = lambda: math.inf
    _answered: int = 0
    _finished: list[tuple[int, Prediction | None]] = field(default_factory=list)

    def submit(self, ticket: int, kernel: Kernel) -> None:
        """Begin and end a prediction."""
        self.asked += 1
        self._finished.append((ticket, self.predictions(kernel)))

    def wait(self, timeout: float | None = None) -> list[tuple[int, Prediction | None]]:  # noqa: ARG002 - nothing takes time here
        """What there was time for."""
        count = int(min(len(self._finished), self.may() - self._answered))
        finished, self._finished = self._finished[:count], self._finished[count:]
        self._answered += count
        return finished

    def uncertainty(self, first: Prediction, second: Prediction) -> float:
        """As it was given."""
        return self.sigma(first, second)

    def close(self) -> None:
        """Nothing is open."""


def perfect(space: RecordedSpace) -> LookedUp:
    """A surrogate that predicts what was measured."""
    known = {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()}
    return LookedUp(lambda kernel: known.get(kernel.identity), lambda _first, _second: 0.01)


def made_up(seed: int) -> LookedUp:
    """A surrogate that draws times, and is sure of them."""

    def predict(kernel: Kernel) -> Prediction:
        drawn = hashlib.sha256(f"{seed} {kernel.identity}".encode()).digest()
        normal = np.random.default_rng(int.from_bytes(drawn[:8])).standard_normal()
        return Prediction(1e-3 * math.exp(RANDOM_SIGMA * float(normal)), {})

    return LookedUp(predict, lambda _first, _second: 0.05)


def modelled(known: Mapping[str, Prediction | None]) -> LookedUp:
    """The model's predictions, with its own uncertainty."""
    return LookedUp(
        lambda kernel: known.get(kernel.identity),
        lambda first, second: log_ratio_sigma(first.terms, second.terms),
    )


def policy_for(use: SurrogateUse) -> Policy:
    """What `mctskernel search --surrogate` takes."""
    if use is SurrogateUse.OFF:
        return Policy(strategy="mcts")
    return Policy(strategy="mcts", order="predicted", lookahead=4 if use is SurrogateUse.FILTER else 1)


def replay(
    space: RecordedSpace, use: SurrogateUse, surrogate: LookedUp | None, seed: int, pace: Pace
) -> Replayed:
    """Search a space, up to the last checkpoint."""
    evaluations = max(CHECKPOINTS)
    tree, _ = grow(
        space.start(seed),
        task=space.task,
        policy=policy_for(use),
        seed=seed,
        proposer=RecordedProposer(space, seed),
        executor=executor_of(space, pace.in_flight),
        budget=min(evaluations, len(space.evaluations)),
        forecaster_of=forecasting(surrogate, pace.predictions) if surrogate else None,
    )
    seconds = [space.seconds.get(node.kernel.identity, math.inf) for node in tree.nodes]
    best = np.minimum.accumulate(seconds) / min(space.seconds.values())
    curve = (*best.tolist(), *[float(best[-1])] * (evaluations - len(seconds)))
    return Replayed(curve, surrogate.asked / len(seconds) if surrogate else 0.0)


def forecasting(surrogate: LookedUp, rate: float | None = None) -> ForecasterOf:
    """What lets a search go by a surrogate that predicts `rate` kernels for each evaluation; None: as it likes."""

    def forecaster_of(tree_search: TreeSearch) -> Forecaster:
        if rate is not None:
            surrogate.may = lambda: rate * tree_search.tree.evaluations
        return Forecaster(tree_search, Predictions(surrogate), wait=rate is None)

    return forecaster_of


@dataclass(frozen=True)
class Contender:
    """A row of the table: how the search was guided, and the surrogate of a space and a seed."""

    name: str
    use: SurrogateUse
    surrogate: Callable[[RecordedSpace, int], LookedUp | None]


def contenders(known: Mapping[str, Mapping[str, Prediction | None]]) -> list[Contender]:
    """All that are compared; the model's only where there are predictions."""
    surrogates: dict[str, Callable[[RecordedSpace, int], LookedUp | None]] = {
        "perfect": lambda space, _: perfect(space),
        "model": lambda space, _: modelled(known.get(space.name, {})),
        "random": lambda _, seed: made_up(seed),
    }
    guided = (SurrogateUse.ORDER, SurrogateUse.FILTER)
    return [
        Contender("off", SurrogateUse.OFF, lambda _space, _seed: None),
        *(Contender(f"{use}, {name}", use, made) for name, made in surrogates.items() for use in guided),
    ]


@click.group()
def main() -> None:
    """Measure what predictions are worth to a search, without a GPU."""


@main.command("predict")
@folders_argument
@click.option("--architecture", default="H100", show_default=True, help="The GPU of the recordings.")
@click.option("--limit", type=click.IntRange(min=1), help="Kernels of each space, the first ones.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def predict_command(folders: tuple[Path, ...], architecture: str, limit: int | None, out: Path) -> None:
    """Price every kernel of the spaces, once."""
    gpu = load_architecture(architecture)
    done = {(row.space, row.kernel) for row in read_predictions(out)}
    with out.open("ab") as file:
        for space in (space for folder in folders for space in read_spaces(folder)):
            device = PricingDevice(space.task, gpu)
            for identity in list(space.evaluations)[:limit]:
                if (space.name, identity) in done:
                    continue
                if identity in space.tasks:
                    device = PricingDevice(space.tasks[identity], gpu)
                found = prediction_of(device.evaluate(space.kernels[identity]))
                row = Predicted(
                    space.name, identity, found.seconds if found else None, dict(found.terms) if found else {}
                )
                file.write(msgspec.json.encode(row) + b"\n")
                file.flush()
            click.echo(f"{space.name}: {len(space.evaluations)} kernels", err=True)


@main.command("replay")
@folders_argument
@click.option("--predictions", type=click.Path(path_type=Path, exists=True), help="What `predict` wrote.")
@click.option("--limit", type=click.IntRange(min=1), help="Kernels of each run, the first ones.")
@click.option(
    "--in-flight", type=click.IntRange(min=1), default=1, show_default=True, help="Evaluations at a time."
)
@click.option("--pace", type=float, help="Predictions per evaluation that are made in time. [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
def replay_command(
    *,
    folders: tuple[Path, ...],
    predictions: Path | None,
    limit: int | None,
    seeds: int,
    in_flight: int,
    pace: float | None,
) -> None:
    """Search the spaces again and print the table."""
    known: dict[str, dict[str, Prediction | None]] = {}
    for row in read_predictions(predictions) if predictions else ():
        found = Prediction(row.seconds, row.terms) if row.seconds else None
        known.setdefault(row.space, {})[row.kernel] = found
    spaces = [space.first(limit) for folder in folders for space in read_spaces(folder)]
    ranked = [space for space in spaces if space.ranked]
    tuned = [space for space in spaces if not space.ranked]
    for title, group in (("runs", ranked), ("families of variants", tuned)):
        if group:
            rows = {
                each.name: _replays(each, group, seeds, Pace(in_flight, pace)) for each in contenders(known)
            }
            Console(width=110).print(_table(f"{len(group)} {title}, {seeds} seeds", rows))


def read_predictions(path: Path) -> Iterable[Predicted]:
    """The rows of a file; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Predicted) for line in lines]


def _replays(contender: Contender, spaces: Sequence[RecordedSpace], seeds: int, pace: Pace) -> list[Replayed]:
    return [
        replay(space, contender.use, contender.surrogate(space, seed), seed, pace)
        for space in spaces
        for seed in range(seeds)
    ]


def _table(title: str, rows: Mapping[str, list[Replayed]]) -> Table:
    columns = (*(f"after {count}" for count in CHECKPOINTS), "to within 5 %", "predictions")
    table = Table("search", *columns, title=title)
    for name, replays in rows.items():
        curves = [each.ratios for each in replays]
        means = (math.exp(np.mean([math.log(curve[count - 1]) for curve in curves])) for count in CHECKPOINTS)
        needed = [
            next((n for n, ratio in enumerate(curve, 1) if ratio <= 1.05), len(curve)) for curve in curves
        ]
        asked = np.mean([each.predictions for each in replays])
        table.add_row(name, *(f"{mean:.3f}" for mean in means), f"{np.mean(needed):.1f}", f"{asked:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
