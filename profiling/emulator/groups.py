"""Lanes that run together with their registers, and what a group that was split still shares with its parent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.profiling.emulator.arithmetic import V
from mctskernel.profiling.emulator.lanes import Lanes


@dataclass
class Group:
    """Lanes at one basic block with their register file, which is replaced entry by entry, never in place."""

    lanes: Lanes
    registers: list[V]
    origin: Origin | None = None

    @property
    def depth(self) -> int:
        """How many splits lie behind the group."""
        return self.origin.depth if self.origin else 0


@dataclass(frozen=True)
class Origin:
    """The group that another was split from, which runs no more, and what the part took from its registers.

    A register that a part still holds as it took it needs no merging: the parent's array has it for both.
    """

    parent: Group
    taken: list[V | None]
    depth: int


def common_parent(a: Group, b: Group) -> Group | None:
    """The latest group that both were split from."""
    parents = {id(parent) for parent in _parents(a)}
    return next((parent for parent in _parents(b) if id(parent) in parents), None)


def _parents(group: Group) -> Iterator[Group]:
    while group.origin is not None:
        group = group.origin.parent
        yield group


def unchanged(group: Group, slot: int, parent: Group) -> bool:
    """Whether a register is what the parent had, down to a choice of lanes."""
    while group is not parent:
        origin = group.origin
        if origin is None or group.registers[slot] is not origin.taken[slot]:
            return False
        group = origin.parent
    return True
