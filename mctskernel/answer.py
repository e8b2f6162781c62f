"""The answer of a search: the fastest kernel that passes the final validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile

from mctskernel.core.evaluation import Check, Evaluation, Timing
from mctskernel.core.executor import Executor
from mctskernel.executors.tickets import in_thread
from mctskernel.profiling.guardrails import refusal
from mctskernel.profiling.reward import are_tied, fastest_first, is_eligible
from mctskernel.tasks.starts import best_start, start_speedup
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import TreeSearch

POLL_SECONDS = 0.1
"""How long to wait for a final validation before looking at Ctrl-C again."""

HEARTBEAT_SECONDS = 5.0
"""How often a final validation says that it goes on."""

FINALISTS = 10
"""How many of the fastest kernels may fail the final validation before the baseline is the answer."""


@dataclass(frozen=True)
class Answer:
    """The fastest kernel that passed every guard and the final validation, with those that didn't pass it.

    `speedup` is over the fastest start, which is the answer when nothing faster passed; `node` is None when no start
    passed either. `timings` are those of the final validation, at held-out shapes beside that start's, and `notes` what
    it noticed besides. `caveats` are the task's. `validated` says that this came to its
    end. It is the answer of the tree's first `evaluations`.
    """

    node: int | None
    speedup: float
    checks: tuple[Check, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    caveats: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = ()
    validated: bool = True
    evaluations: int = 0


def choose(
    search: TreeSearch,
    executor: Executor,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Choose by time alone among nodes that passed every guardrail, and let the final validation decide.

    Where `stopped` or Ctrl-C ends that, the executor is closed and the fastest one left is the answer, not validated.
    Of a modelled node's trajectory the last edits are left out whose gain is within the model's uncertainty.
    Descendants of a kernel that was refused come after all others: variants of one cheat are many.
    """
    tree = search.tree
    root = tree.nodes[0].evaluation
    if root is None:
        return Answer(None, 0.0)
    evaluated = [(node.id, node.evaluation) for node in tree.nodes if node.evaluation is not None]
    shortened = dict.fromkeys(_without_ties(tree, node) for node in fastest_first(evaluated, root))
    faster = tuple(takewhile(lambda node: node != 0, shortened))
    refused: list[tuple[int, str]] = []
    for node in chain(islice(_in_turn(tree, faster, refused), FINALISTS), _starts_left(tree, refused)):
        start = best_start(tree, [number for number, _ in refused])
        say(f"Final validation of node {node} in a new process, with a fresh seed; Ctrl-C leaves it out.")
        validate = partial(executor.final_validation, search.kernel(node), search.kernel(start))
        found = _unless_stopped(validate, say, stopped)
        if found is None:
            executor.close()
            speedup = valid_speedup(tree.nodes[node]) / start_speedup(tree, dict(refused))
            return Answer(node, speedup, (), tuple(refused), validated=False)
        if not (reason := refusal(found, tree.nodes[start].evaluation or root)):
            return _answer(tree, tree.nodes[node], start, found, tuple(refused))
        refused.append((node, reason))
    return Answer(None, 0.0, (), tuple(refused))


def _unless_stopped(
    validate: Callable[[], Evaluation], say: Callable[[str], None], stopped: Callable[[], bool]
) -> Evaluation | None:
    """What a final validation found; None if it is to stop before its end."""
    began, said = time.monotonic(), 0
    found = in_thread(validate, "validate")
    with suppress(KeyboardInterrupt):
        while not stopped():
            with suppress(TimeoutError):
                return found.result(POLL_SECONDS)
            seconds = time.monotonic() - began
            if seconds >= (said + 1) * HEARTBEAT_SECONDS:
                said += 1
                say(f"The final validation goes on: {seconds:.0f} s.")
    return None


def _starts_left(tree: Tree, refused: Sequence[tuple[int, str]]) -> Iterator[int]:
    """The fastest start that wasn't refused, then the next one, down to the root."""
    while (start := best_start(tree, [number for number, _ in refused])) not in dict(refused):
        yield start


def _in_turn(tree: Tree, nodes: Sequence[int], refused: Sequence[tuple[int, str]]) -> Iterator[int]:
    """The nodes in their order, those last that descend from one of `refused`, which grows meanwhile."""
    waiting = []
    for node in nodes:
        if {number for number, _ in refused}.isdisjoint(tree.lineage(node)):
            yield node
        else:
            waiting.append(node)
    yield from waiting


def _answer(
    tree: Tree, node: Node, start: int, found: Evaluation, refused: tuple[tuple[int, str], ...]
) -> Answer:
    known = node.evaluation.flags if node.evaluation is not None else ()
    return Answer(
        node.id,
        valid_speedup(node) / start_speedup(tree, dict(refused)),
        found.checks,
        refused,
        timings=found.timings if node.id != start else (),
        notes=tuple(flag for flag in found.flags if flag not in known),
    )


def _without_ties(tree: Tree, node: int) -> int:
    """The earliest node of a trajectory that ties with its end."""
    end = tree.nodes[node].evaluation
    for ancestor in tree.lineage(node):
        found = tree.nodes[ancestor].evaluation
        if found is not None and end is not None and is_eligible(found) and are_tied(found, end):
            return ancestor
    return node


def valid_speedup(node: Node) -> float:
    """A node's speed-up over the root; 0 for one that may not be the answer."""
    if node.evaluation is None or node.score is None or not is_eligible(node.evaluation):
        return 0.0
    return node.score.speedup


def is_improvement(node: Node, best: Node) -> bool:
    """Whether a node is faster than another one, and not just within a model's uncertainty."""
    if valid_speedup(node) <= valid_speedup(best) or node.evaluation is None:
        return False
    return best.evaluation is None or not are_tied(node.evaluation, best.evaluation)
