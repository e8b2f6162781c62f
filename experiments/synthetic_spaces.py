"""Synthetic search spaces to compare strategies on: each is a formula, and always the same.

They are no substitute for a GPU: they say whether a strategy works where it was not tuned, in spaces whose structure is
known.

tiles      what a GPU might do with a tiled loop: waves, reuse, registers, limits that forbid or fail a launch
pairs      an NK landscape, each parameter's effect depending on one other, with 40 % forbidden and 10 % failing
rugged     an NK landscape with three others, where little can be learnt
mines      an NK landscape with one other, in which most configurations fail
words      parameters that are words, whose order means nothing, and whose effects add up
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Configuration, Entry, Parameter, SearchSpace, Value

NOISE = 0.005  # standard deviation of the logarithm of a time
MEDIAN_SECONDS = 1e-3
EFFECT = 0.2  # standard deviation of what one parameter does to a time's logarithm in a landscape
COMPILE_SECONDS = 0.2
RUNS = 100  # an evaluation is a compilation, and so many runs

Measure = Callable[[Configuration], float | Outcome | None]
"""The logarithm of a configuration's time over the median's, how it fails, or None where it isn't allowed."""


TILES = {
    "block_x": (8, 16, 32, 64, 128, 256),
    "block_y": (1, 2, 4, 8, 16, 32),
    "tile_x": (1, 2, 4, 8),
    "tile_y": (1, 2, 4, 8),
    "vector": (1, 2, 4),
    "stages": (1, 2, 3, 4),
    "unroll": (1, 2, 4, 8),
}


def _tiles(values: Configuration) -> float | Outcome | None:
    block_x, block_y, tile_x, tile_y, vector, stages, unroll = (float(value) for value in values)
    threads, work = block_x * block_y, tile_x * tile_y
    if threads > 1024 or threads < 32 or vector > tile_x:
        return None
    registers = 24 + 2 * work + 3 * vector * unroll
    shared = 4 * stages * 16 * (block_x * tile_x + block_y * tile_y)
    if shared > 99 * 1024:
        return Outcome.BUILD_ERROR
    if registers * threads > 65536:
        return Outcome.LAUNCH_ERROR
    resident = (
        min(2048 // threads, 65536 // (registers * threads), 228 * 1024 // max(shared, 1), 32) * threads
    )
    blocks = 2048 * 2048 / (threads * work)
    waves = blocks * threads / (132 * resident)
    compute = (1 + 0.6 / unroll + 0.02 * unroll) * (1 + 2 / work) * math.ceil(waves) / waves
    traffic = (
        (1 / (block_x * tile_x) + 1 / (block_y * tile_y))
        * 64
        * (1 + 0.4 / vector)
        * (1 if block_x >= 32 else 1.6)
    )
    latency = 900 / (resident * min(stages, 3) * math.sqrt(work))
    return math.log(sum(each**3 for each in (compute, traffic, latency)) ** (1 / 3))


def _landscape(
    parameters: int, others: int, seed: int, forbidden: float = 0.0, failing: float = 0.0
) -> Measure:
    """Times whose logarithm is a sum over parameters of a draw for its value and those of so many that follow it.

    The draws of forbidden and failing ones are for the values of two neighbours, so that there is something to learn.
    Source: Kauffman and Weinberger, "The NK model of rugged fitness landscapes", 1989.
    """

    @cache
    def draw(place: int, values: Configuration) -> tuple[float, float, float]:
        rng = np.random.default_rng((seed, place, *(int.from_bytes(str(each).encode()) for each in values)))
        return float(rng.normal()), float(rng.random()), float(rng.random())

    def around(values: Configuration, place: int, count: int) -> Configuration:
        return tuple(values[(place + step) % parameters] for step in range(count))

    def share(of_all: float) -> float:
        return 1 - math.pow(1 - of_all, 1 / parameters)

    def measure(values: Configuration) -> float | Outcome | None:
        pairs = [draw(parameters + place, around(values, place, 2)) for place in range(parameters)]
        if any(chance < share(forbidden) for _, chance, _ in pairs):
            return None
        if any(chance < share(failing) for _, _, chance in pairs):
            return Outcome.LAUNCH_ERROR
        effects = (draw(place, around(values, place, others + 1))[0] for place in range(parameters))
        return EFFECT * sum(effects)

    return measure


def _made(name: str, parameters: Mapping[str, tuple[Value, ...]], measure: Measure) -> SearchSpace:
    rng = np.random.default_rng(0)
    entries = []
    for values in itertools.product(*parameters.values()):
        found = measure(values)
        if isinstance(found, Outcome):
            entries.append(Entry(values, found, stage_seconds={"compile": COMPILE_SECONDS}))
        elif found is not None:
            seconds = MEDIAN_SECONDS * math.exp(found + NOISE * rng.normal())
            stages = {"compile": COMPILE_SECONDS, "benchmark": RUNS * seconds}
            entries.append(Entry(values, Outcome.OK, seconds, stage_seconds=stages))
    return SearchSpace(name, tuple(Parameter(*each) for each in parameters.items()), tuple(entries))


def _numbers(*counts: int) -> dict[str, tuple[Value, ...]]:
    return {f"p{place}": tuple(2**power for power in range(count)) for place, count in enumerate(counts)}


_NUMBERS = _numbers(5, 6, 4, 8, 3, 4)
_WORDS = {f"p{place}": tuple("abcdefgh"[:count]) for place, count in enumerate((6, 5, 4, 4, 3, 3))}

SYNTHETIC_SPACES: Mapping[str, Callable[[], SearchSpace]] = {
    "tiles": partial(_made, "tiles", TILES, _tiles),
    "pairs": partial(_made, "pairs", _NUMBERS, _landscape(6, 1, seed=1, forbidden=0.4, failing=0.1)),
    "rugged": partial(_made, "rugged", _NUMBERS, _landscape(6, 3, seed=2)),
    "mines": partial(_made, "mines", _numbers(6, 6, 6, 6, 4), _landscape(5, 1, seed=3, failing=0.6)),
    "words": partial(_made, "words", _WORDS, _landscape(6, 0, seed=4)),
}
"""What makes each space, by its name."""
