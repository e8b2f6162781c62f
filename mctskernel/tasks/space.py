"""A search-space cache as a task: where its search starts, and its task folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from mctskernel.core.budget import Budget, Spent
from mctskernel.core.space import Entry, SearchSpace, SpaceError, Value, configuration_kernel
from mctskernel.profiling.spaces import write_space

MIDDLE = "middle"
RANDOM = "random"


@dataclass(frozen=True)
class Start:
    """The configuration that a search starts from, and those before it, which failed."""

    entry: Entry
    failed: tuple[Entry, ...] = ()

    @property
    def spent(self) -> Spent:
        """What the failed ones cost."""
        return Spent(len(self.failed), sum(entry.cost_seconds for entry in self.failed))


def choose_start(space: SearchSpace, wanted: str, seed: int, budget: Budget) -> Start:
    """The first configuration with a time, in the order that `wanted` says.

    MIDDLE goes by the distance from the middle of every parameter, RANDOM is drawn by the seed, and `NAME=VALUE,...`
    goes by the distance from these values, and from the middle of the parameters that aren't named. Raises SpaceError
    when no configuration has the named values, when all of the space failed, or when the budget is spent before one is
    found.
    """
    if wanted == RANDOM:
        numbers = np.random.default_rng(seed).permutation(len(space.entries))
        order = [space.entries[number] for number in numbers]
    else:
        order = _by_distance(space, wanted)
    failed = tuple(takewhile(lambda entry: entry.seconds is None, order))
    if len(failed) == len(order):
        raise SpaceError(
            f"All {len(order)} configurations of {space.name} failed: there is nothing to start a search from."
        )
    start = Start(order[len(failed)], failed)
    spent = start.spent
    if (budget.evaluations is not None and spent.evaluations >= budget.evaluations) or (
        budget.seconds is not None and spent.seconds >= budget.seconds
    ):
        raise SpaceError(
            f"The whole budget went to {len(failed)} starting configurations of {space.name} that failed; another "
            "--start, or a larger budget, may find one that runs."
        )
    return start


def write_space_task(space: SearchSpace, start: Entry, folder: Path) -> None:
    """Make a task folder of a space and the configuration to start from."""
    file = f"{space.name}.json.gz"
    write_space(space, folder / file)
    kernel = configuration_kernel(space, start.values)
    (folder / f"kernel{kernel.language.suffix}").write_text(kernel.source, encoding="utf-8")
    (folder / "task.toml").write_text(f'name = "{space.name}"\nspace = "{file}"\n', encoding="utf-8")


def _by_distance(space: SearchSpace, wanted: str) -> list[Entry]:
    """Entries by distance from a point between the parameters' values, each parameter being 1 wide."""
    given = {} if wanted == MIDDLE else _given(space, wanted)
    places = [{value: place for place, value in enumerate(each.values)} for each in space.parameters]
    points = np.array(
        [[known[value] for known, value in zip(places, entry.values, strict=True)] for entry in space.entries]
    )
    target = np.array(
        [
            known[given[each.name]] if each.name in given else (len(known) - 1) / 2
            for each, known in zip(space.parameters, places, strict=True)
        ]
    )
    widths = np.array([max(1, len(known) - 1) for known in places])
    distances = np.abs(points - target) / widths
    named = [place for place, each in enumerate(space.parameters) if each.name in given]
    if not (distances[:, named] == 0).all(axis=1).any():
        raise SpaceError(f"{space.name} has no configuration with {wanted}.")
    # Those with all of the named values come first, however far the others are.
    others = (distances[:, named] > 0).sum(axis=1)
    order = np.lexsort((distances.sum(axis=1), others))
    return [space.entries[number] for number in order]


def _given(space: SearchSpace, wanted: str) -> Mapping[str, Value]:
    """The values that `NAME=VALUE,...` names."""
    given: dict[str, Value] = {}
    for text in wanted.split(","):
        name, equals, written = (part.strip() for part in text.partition("="))
        if not equals:
            raise SpaceError(f"--start is {MIDDLE}, {RANDOM} or NAME=VALUE,..., not {wanted!r}.")
        parameter = next((each for each in space.parameters if each.name == name), None)
        if parameter is None:
            raise SpaceError(f"{space.name} has no parameter {name!r} (it has {', '.join(space.names)}).")
        known = {str(value).lower(): value for value in parameter.values}
        if written.lower() not in known:
            raise SpaceError(f"{name} of {space.name} is never {written} (it is {', '.join(known)}).")
        given[name] = known[written.lower()]
    return given
