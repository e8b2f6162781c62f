"""A search-space cache as a task: where its search starts, and its task folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from mctskernel.core.space import Entry, SearchSpace, SpaceError, configuration_kernel


@dataclass(frozen=True)
class Start:
    """The configuration that a search starts from, and those drawn before it, which failed."""

    entry: Entry
    failed: tuple[Entry, ...] = ()


def choose_start(space: SearchSpace, seed: int) -> Start:
    """The first configuration with a time, in the order that the seed draws. Raises SpaceError when there is none."""
    numbers = np.random.default_rng(seed).permutation(len(space.entries))
    order = [space.entries[number] for number in numbers]
    failed = tuple(takewhile(lambda entry: entry.seconds is None, order))
    if len(failed) == len(order):
        raise SpaceError(
            f"All {len(order)} configurations of {space.name} failed: there is nothing to start a search from."
        )
    return Start(order[len(failed)], failed)


def write_space_task(file: Path, space: SearchSpace, start: Entry, folder: Path) -> None:
    """Write the task folder of a space, which was read from `file`. Raises OSError."""
    cache = f"{space.name}.json{'.gz' if file.suffix == '.gz' else ''}"
    shutil.copyfile(file, folder / cache)
    kernel = configuration_kernel(space, start.values)
    (folder / f"kernel{kernel.language.suffix}").write_text(kernel.source, encoding="utf-8")
    (folder / "task.toml").write_text(f'name = "{space.name}"\nspace = "{cache}"\n', encoding="utf-8")
