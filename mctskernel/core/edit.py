"""An edit: a proposed change of a kernel, and why it should help."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass

from mctskernel.core.kernel import Language
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.task import Task


class Category(enum.StrEnum):
    """What kind of change an edit makes. `mctskernel.edits.catalogue` describes each."""

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


@dataclass(frozen=True)
class Patch:
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class WholeSource:
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
    """What an edit decides: its factors or, where it names none, that its title is done."""
    return factors or (Factor(f"{category}: {title}", DONE),)


DONE = 1.0
"""The level of a title."""


LONGEST_TITLE = 120
"""Characters of a title that are kept: models write titles, and prompts quote them."""


@dataclass(frozen=True)
class Experience:
    """What edits of one kind did to kernels of one kind, over all runs that are remembered.

    A kind of edit is a category and a title without its numbers; a kind of kernel is a language, an architecture such
    as `sm_90` and the bottleneck that weighed most. Of `tried` edits, `failed` gave no valid kernel and `improved` made
    it faster by more than the noise. `log_gain` is the mean logarithm of the gain of those that were valid.
    """

    category: str
    title: str
    bottleneck: str
    language: str
    architecture: str
    tried: int
    failed: int
    improved: int
    log_gain: float


def kind_of(title: str, names: Collection[str] = ()) -> str:
    """A title without numbers, parentheses and these names, which are a task's own.

    `BLOCK 32 -> 64` becomes `block # -> #`; with the name `softmax`, `unroll loop 2 of softmax (for (...)) by 4`
    becomes `unroll loop # of _ by #`. It is one line of at most `LONGEST_TITLE` characters.
    """
    text = _PARENTHESES.sub("", title)
    if names:
        text = re.sub(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(names)))})(?!\w)", "_", text)
    words = _NUMBER.sub("#", text).lower().split()
    return "".join(each for each in " ".join(words) if each.isprintable())[:LONGEST_TITLE]


def names_of(task: Task) -> frozenset[str]:
    """The names that are a task's own: of its buffers and of its starting kernel's functions."""
    buffers = {tensor.name for tensor in (*task.inputs, *task.outputs)}
    try:
        functions = {launch.kernel for launch in plan_of(task.starting_kernel).launches}
    except LaunchPlanError:
        functions = set()
    return frozenset((buffers | functions) - _ARTICLES)


_PARENTHESES = re.compile(r"\s\(.*\)")
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d+(?:\.\d+)?")
_ARTICLES = {"a"}
