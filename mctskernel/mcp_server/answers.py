"""What the tools answer: short, each long text cut with the address of the whole, all of it data and no instruction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from mctskernel.asks import Ask, AskedAttempt, AskedCause, AskedTask
from mctskernel.core.evaluation import Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.mcp_server.texts import address
from mctskernel.profiling.model.explanation import ExplainedTerm
from mctskernel.profiling.ncu import Finding
from mctskernel.profiling.utilisation import BusyTime
from mctskernel.run import Budget
from mctskernel.search import Ending
from mctskernel.session import Told

SOURCE_LENGTH = 12_000
"""Characters of a source in an answer: nearly every kernel whole."""

LOG_LENGTH = 2_000
MESSAGE_LENGTH = 400
ATTEMPTS = 8
"""How many edits that were tried an answer tells of, of each kind."""


class ListedTask(msgspec.Struct, frozen=True):
    """A task that a run can be begun on."""

    task: str
    summary: str


class ListedRun(msgspec.Struct, frozen=True):
    """A run; `speedup` is that of its best kernel over the starting kernel."""

    run: str
    task: str
    device: str
    evaluations: int
    speedup: float


class Listing(msgspec.Struct, frozen=True):
    """Tasks and runs, the newest run first, of `total`; `problems` are of those that can't be read."""

    tasks: tuple[ListedTask, ...]
    runs: tuple[ListedRun, ...]
    total: int
    problems: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands. `numbers` says whether times are measured or modelled; `remaining` is null where no limit is.

    `answer` is the node that passed the last gate, null while the search goes on; `best` is the fastest so far.
    """

    run: str
    task: str
    language: Language
    device: str
    numbers: Source | None
    evaluations: int
    outcomes: dict[str, int]
    remaining: Budget
    best: int
    best_speedup: float
    answer: int | None
    gate: str
    task_uri: str


class AskedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that needs edits. One that failed is to be repaired: `message` and `log` say what is wrong.

    `siblings` were tried on this kernel already: don't repeat them.
    """

    node: int
    source: str
    outcome: Outcome
    seconds: float | None
    speedup: float
    causes: tuple[AskedCause, ...]
    explanation: str
    message: str
    log: str
    lineage: tuple[AskedAttempt, ...]
    siblings: tuple[AskedAttempt, ...]
    elsewhere: tuple[AskedAttempt, ...]
    source_uri: str
    log_uri: str
    counters_uri: str


class Asked(msgspec.Struct, frozen=True):
    """The nodes that need edits next; none when the search has ended, and `search` says why.

    `task` is told at the beginning of a run.
    """

    search: Ending
    nodes: tuple[AskedNode, ...]
    status: Status
    task: AskedTask | None = None


class ToldEdits(msgspec.Struct, frozen=True):
    """What became of each edit. An outcome of null: it waits for its turn, which it gets when it promises most.

    `search` says whether the search has ended, and why.
    """

    edits: tuple[Told, ...]
    search: Ending
    status: Status


class ListedNode(msgspec.Struct, frozen=True):
    """A node; `gain` is its parent's time over its own, 0 if unknown."""

    node: int
    parent: int | None
    title: str
    outcome: Outcome | None
    gain: float
    speedup: float
    untried_edits: int


class TreePart(msgspec.Struct, frozen=True):
    """Nodes of the tree, of `total`."""

    nodes: tuple[ListedNode, ...]
    total: int
    tree_uri: str


class PathStep(msgspec.Struct, frozen=True):
    """A step of the best path: the edit, what it did and what bound the kernel that it changed."""

    node: int
    title: str
    category: str
    seconds: float | None
    gain: float
    speedup: float
    relieved: str
    diff_uri: str


class BestPath(msgspec.Struct, frozen=True):
    """The path from the starting kernel to the best one."""

    steps: tuple[PathStep, ...]
    gate: str
    source_uri: str
    trajectory_uri: str


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A node: the edit that made it, how it was judged, and what the edit did. `uris` are its texts."""

    node: int
    parent: int | None
    title: str
    rationale: str
    outcome: Outcome | None
    numbers: Source | None
    seconds: float | None
    speedup: float
    message: str
    log: str
    quarantine: str
    flags: tuple[str, ...]
    what_the_edit_did: tuple[str, ...]
    edits: tuple[Told, ...]
    uris: tuple[str, ...]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What binds a kernel: `terms` of a modelled time, `busy` units of a measured one, the causes behind them.

    `findings` are those of Nsight Compute's rules, if a report was asked for.
    """

    node: int
    numbers: Source
    seconds: float
    low: float
    high: float
    sentences: tuple[str, ...]
    doubt: str
    terms: tuple[ExplainedTerm, ...]
    busy: tuple[BusyTime, ...]
    causes: tuple[AskedCause, ...]
    findings: tuple[Finding, ...]
    counters_uri: str


class Page(msgspec.Struct, frozen=True):
    """Part of a text; `next_offset` is null at its end."""

    text: str
    characters: int
    next_offset: int | None


def cut(text: str, length: int) -> str:
    """The beginning of a text, and how much of it is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]}\n[... {len(text) - length} more characters]"


def asked_node(run: str, ask: Ask) -> AskedNode:
    """The short form of an ask."""
    evidence = ask.evidence
    return AskedNode(
        node=ask.node,
        source=cut(ask.source, SOURCE_LENGTH),
        outcome=evidence.outcome,
        seconds=evidence.seconds,
        speedup=evidence.speedup,
        causes=evidence.causes,
        explanation=cut(evidence.explanation, LOG_LENGTH),
        message=cut(evidence.message, MESSAGE_LENGTH),
        log="" if evidence.outcome is Outcome.OK else cut(evidence.log, LOG_LENGTH),
        lineage=_attempts(ask.lineage),
        siblings=_attempts(ask.siblings),
        elsewhere=_attempts(ask.elsewhere),
        source_uri=address(run, "source", ask.node),
        log_uri=address(run, "log", ask.node),
        counters_uri=address(run, "counters", ask.node),
    )


def shortened(told: Iterable[Told]) -> tuple[Told, ...]:
    """The same with messages cut."""
    return _cut_messages(told)


def _attempts(attempts: tuple[AskedAttempt, ...]) -> tuple[AskedAttempt, ...]:
    return _cut_messages(attempts[-ATTEMPTS:])


_Told = TypeVar("_Told", Told, AskedAttempt)


def _cut_messages(each: Iterable[_Told]) -> tuple[_Told, ...]:
    return tuple(msgspec.structs.replace(one, message=cut(one.message, MESSAGE_LENGTH)) for one in each)
