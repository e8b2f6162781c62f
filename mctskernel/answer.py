"""The answer of a search: the fastest kernel that passes the final validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, islice

from mctskernel.core.evaluation import Check, Evaluation, Timing
from mctskernel.core.executor import Executor
from mctskernel.executors.tickets import in_thread
from mctskernel.profiling.guardrails import disbelief, refusal
from mctskernel.profiling.reward import are_tied, is_eligible
from mctskernel.tasks.starts import best_start, start_speedup
from mctskernel.tree.events import Evaluated
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import TreeSearch

POLL_SECONDS = 0.1  # how long to wait for a final validation before looking at Ctrl-C again
HEARTBEAT_SECONDS = 1.0  # how often a final validation says that it goes on

FINALISTS = 10
"""How many of the fastest kernels may fail the final validation before the baseline is the answer."""


@dataclass(frozen=True)
class Answer:
    """The fastest kernel that passed every guard and the final validation, with those that didn't pass it.

    `speedup` is over the fastest start, which is the answer when nothing faster passed; `node` is None when no start
    passed either. `timings` are those of the final validation, at held-out shapes beside that start's, and `notes` what
    it noticed besides. `caveats` are the task's. `validated` says that this came to its end. It is the answer of the
    tree's first `evaluations`.
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
    say: Callable[[int, float], None] = lambda _node, _seconds: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Choose by time alone among nodes that passed every guardrail, and let the final validation decide.

    `say` is called repeatedly with the node that is validated and its seconds so far. Where `stopped` or Ctrl-C ends
    that, the executor is closed and the fastest one left is the answer, not validated.
    """
    tree = search.tree
    root = tree.nodes[0].evaluation
    if root is None:
        return Answer(None, 0.0)
    refused: list[tuple[int, str]] = []
    for node in chain(islice(_faster(tree, refused), FINALISTS), _starts_left(tree, refused)):
        start = best_start(tree, [number for number, _ in refused])
        validate = partial(executor.final_validation, search.kernel(node), search.kernel(start))
        found = _unless_stopped(validate, partial(say, node), stopped)
        if found is None:
            executor.close()
            speedup = valid_speedup(tree.nodes[node]) / start_speedup(tree, dict(refused))
            return Answer(node, speedup, (), tuple(refused), validated=False)
        # Timed beside itself a start may differ by more than noise, from where its buffers lie.
        reason = disbelief(found) if node == start else refusal(found, tree.nodes[start].evaluation or root)
        if not reason:
            return _answer(tree, tree.nodes[node], start, found, tuple(refused))
        refused.append((node, reason))
    return Answer(None, 0.0, (), tuple(refused))


def _unless_stopped(
    validate: Callable[[], Evaluation], say: Callable[[float], None], stopped: Callable[[], bool]
) -> Evaluation | None:
    """What a final validation found; None if it is to stop before its end."""
    began, said = time.monotonic(), -HEARTBEAT_SECONDS
    found = in_thread(validate, "validate")
    with suppress(KeyboardInterrupt):
        while not stopped():
            if (seconds := time.monotonic() - began) >= said + HEARTBEAT_SECONDS:
                said = seconds
                say(seconds)
            with suppress(TimeoutError):
                return found.result(POLL_SECONDS)
    return None


def _starts_left(tree: Tree, refused: Sequence[tuple[int, str]]) -> Iterator[int]:
    """The fastest start that wasn't refused, then the next one, down to the root."""
    while (start := best_start(tree, [number for number, _ in refused])) not in dict(refused):
        yield start


def _faster(tree: Tree, refused: Sequence[tuple[int, str]]) -> Iterator[int]:
    """The best node, then the best one that isn't among `refused`, which grows meanwhile, as long as there is one."""
    while node := best_node(tree, [number for number, _ in refused]):
        yield node


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


def best_node(tree: Tree, refused: Collection[int] = ()) -> int:
    """The node of the fastest kernel, as everything shows it: of modelled ties the one that was found first.

    Descendants of `refused` ones come after all others: variants of one cheat are many. 0 where nothing is faster than
    the root.
    """
    groups: tuple[list[Node], list[Node]] = ([], [])
    for node in map(tree.nodes.__getitem__, tree.evaluated):
        if node.id not in refused:
            groups[bool(refused) and not set(tree.lineage(node.id)).isdisjoint(refused)].append(node)
    for found in groups:
        best = reduce(
            lambda best, other: other if is_improvement(other, best) else best, found, tree.nodes[0]
        )
        if best.id:
            return best.id
    return 0


def tied_with(tree: Tree, best: Node, refused: Collection[int] = ()) -> Node | None:
    """The fastest node, if it is another one than the best: the two differ by less than the model's uncertainty."""
    found = max((each for each in tree.nodes if each.id not in refused), key=valid_speedup, default=best)
    if found is best or found.evaluation is None or best.evaluation is None:
        return None
    return found if are_tied(found.evaluation, best.evaluation) else None


def valid_speedup(node: Node | Evaluated) -> float:
    """A node's speed-up over the root; 0 for one that may not be the answer."""
    if node.evaluation is None or node.score is None or not is_eligible(node.evaluation):
        return 0.0
    return node.score.speedup


def is_improvement(node: Node | Evaluated, best: Node | Evaluated) -> bool:
    """Whether a node is faster than another one, and not just within a model's uncertainty."""
    if valid_speedup(node) <= valid_speedup(best) or node.evaluation is None:
        return False
    return best.evaluation is None or not are_tied(node.evaluation, best.evaluation)
