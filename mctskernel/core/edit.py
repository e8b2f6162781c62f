"""An edit: a proposed change of a kernel, and why it should help."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from mctskernel.core.kernel import Language


class Category(enum.StrEnum):
    """What kind of change an edit makes."""

    TUNING = "tuning"
    LAUNCH = "launch configuration"
    COMPILER_HINTS = "compiler hints"
    UNROLLING = "unrolling"
    COALESCING = "memory coalescing"
    VECTORIZATION = "vectorized access"
    COARSENING = "thread coarsening"
    SHARED_TILING = "shared-memory tiling"
    REGISTER_BLOCKING = "register blocking"
    BANK_CONFLICTS = "bank conflicts"
    WARP_PRIMITIVES = "warp primitives"
    PARALLELISM = "parallelism"
    ASYNC_COPY = "asynchronous copies"
    TENSOR_CORES = "tensor cores"
    PRECISION = "numerics"
    ALGORITHM = "algorithm"
    FUSION = "fusion"
    REPAIR = "repair"


@dataclass(frozen=True)
class Block:
    """One SEARCH/REPLACE pair. An empty `search` is not allowed."""

    search: str
    replace: str


class Patch(msgspec.Struct, frozen=True, tag="patch", tag_field="change"):
    blocks: tuple[Block, ...]


class WholeSource(msgspec.Struct, frozen=True, omit_defaults=True, tag="whole source", tag_field="change"):
    """A complete new source text, in another language than the kernel's if one is given."""

    source: str
    language: Language | None = None


@dataclass(frozen=True)
class Settings:
    """Sets the parameters of a configuration that the edit's factors name; its text is nothing but them."""


@dataclass(frozen=True, slots=True)
class Factor:
    """Something that an edit decides, and how it decides it: `block_size_x` at 128.

    Levels that are numbers are ordered. The same name means the same thing in every kernel of a tree: what is learnt of
    it from one edit is used for all.
    """

    name: str
    level: int | float | str


@dataclass(frozen=True)
class Edit:
    """A proposed change. `prior`, positive and of any scale, is its promise among the edits of one reply.

    `factors` are what it decides; an edit without any decides one thing, that its title is done. `exchange` is the
    number, in its reply, of the exchange with a model that it came from.
    """

    category: Category
    title: str
    change: Patch | WholeSource | Settings
    rationale: str = ""
    expected_effect: str = ""
    prior: float = 1.0
    proposer: str = ""
    factors: tuple[Factor, ...] = ()
    exchange: int | None = None


def decided(category: Category, title: str, factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Return what an edit decides: its factors or, where it names none, that its title is done."""
    return factors or (Factor(f"{category}: {title}", DONE),)


DONE = 1.0
"""The level of a title."""
