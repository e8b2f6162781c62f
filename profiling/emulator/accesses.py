"""Accesses as the race checks remember them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.codegen import Access
from mctskernel.profiling.emulator.lanes import Lanes
from mctskernel.profiling.emulator.resolve import Part

ORDER = {"write": 0, "async": 0, "atomic": 1, "read": 2}
VERBS = {"write": "writes", "async": "copies to", "atomic": "updates", "read": "reads"}
_NOBODY = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class Entry:
    """One execution of an access: `kind` is read, write, atomic (also strong loads and stores) or async.

    `epoch` counts the barriers of each lane's warp, `time` is the launch's clock of hand-overs, and `looked` when each
    block had last looked for one.
    """

    kind: str
    access: Access
    lanes: Lanes
    part: Part
    unit: V | None
    epoch: np.ndarray | int
    time: int = 0
    looked: np.ndarray = field(default_factory=lambda: _NOBODY)
    order: np.ndarray | None = None

    @property
    def slots(self) -> np.ndarray:
        return self.lanes.slots if self.part.where is None else self.lanes.slots[self.part.where]


def expanded(entry: Entry, granule: int) -> np.ndarray:
    """The granules that an entry touches, those of a lane side by side."""
    part, factor = entry.part, entry.access.bytes // granule
    if part.granules is None:
        index = np.broadcast_to(np.asarray(part.index), len(entry.slots))
        part.granules = (index[:, None] * factor + np.arange(factor)).reshape(-1) if factor > 1 else index
    return part.granules


def chosen(entry: Entry, lanes: np.ndarray) -> Entry | None:
    """The entry of some of its lanes; None for none."""
    if lanes.all():
        return entry
    if not lanes.any():
        return None
    where = np.arange(entry.lanes.n) if entry.part.where is None else entry.part.where
    index = np.broadcast_to(np.asarray(entry.part.index), len(where))[lanes]
    part = Part(entry.part.storage, entry.part.space, index, where[lanes])
    unit = entry.unit if entry.unit is None or entry.unit.ndim == 0 else entry.unit[lanes]
    epoch = entry.epoch if isinstance(entry.epoch, int) else entry.epoch[lanes]
    return Entry(
        entry.kind, entry.access, entry.lanes, part, unit, epoch, entry.time, entry.looked, entry.order
    )


def divided(entries: list[Entry], inside: np.ndarray) -> tuple[list[Entry], list[Entry]]:
    """Entries of the batch's blocks that are inside, and the rest."""
    ending: list[Entry] = []
    rest: list[Entry] = []
    for entry in entries:
        mask = inside[entry.slots // entry.lanes.batch.slots_per_block]
        for group, part in ((ending, chosen(entry, mask)), (rest, chosen(entry, ~mask))):
            if part is not None:
                group.append(part)
    return ending, rest
