"""The answer of a run: the fastest kernel that passed every guard and the final validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.evaluation import Check, Evaluation, Timing
from mctskernel.core.executor import Executor
from mctskernel.profiling.guardrails import refusal
from mctskernel.profiling.reward import are_tied, fastest_first, is_eligible
from mctskernel.run import RunError, RunFolder, write_text
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import TreeSearch

NOTHING_HELD_OUT = (
    "The task has no held-out shapes, so the final validation was at shapes that the search uses: a kernel that is "
    "right only there passes."
)
"""The warning on an answer whose task has no `held_out` shapes."""

FINALISTS = 10
"""How many of the fastest kernels may fail the final validation before the baseline is the answer."""


@dataclass(frozen=True)
class Answer:
    """The fastest kernel that passed every guard and the final validation, with those that didn't pass it.

    `node` is 0, the baseline, when no faster kernel passed; None when not even the baseline did. `timings` are those of
    the final validation, at held-out shapes beside the baseline's, and `notes` what it noticed besides.
    `unverified_reference` is the task's.
    """

    node: int | None
    speedup: float
    checks: tuple[Check, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    unverified_reference: bool = False
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = ()


def choose(search: TreeSearch, executor: Executor) -> Answer:
    """Choose by time alone among nodes that passed every guardrail, and let the final validation decide.

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
    for node in (*islice(_in_turn(tree, faster, refused), FINALISTS), 0):
        found = executor.final_validation(search.kernel(node), search.kernel(0))
        if not (reason := refusal(found, root)):
            return _answer(tree.nodes[node], found, tuple(refused))
        refused.append((node, reason))
    return Answer(None, 0.0, (), tuple(refused))


def _in_turn(tree: Tree, nodes: Sequence[int], refused: Sequence[tuple[int, str]]) -> Iterator[int]:
    """The nodes in their order, those last that descend from one of `refused`, which grows meanwhile."""
    waiting = []
    for node in nodes:
        if {number for number, _ in refused}.isdisjoint(tree.lineage(node)):
            yield node
        else:
            waiting.append(node)
    yield from waiting


def _answer(node: Node, gate: Evaluation, refused: tuple[tuple[int, str], ...]) -> Answer:
    known = node.evaluation.flags if node.evaluation is not None else ()
    return Answer(
        node.id,
        valid_speedup(node),
        gate.checks,
        refused,
        timings=gate.timings if node.id else (),
        notes=tuple(flag for flag in gate.flags if flag not in known),
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
    """A node's speed-up over the baseline; 0 for one that may not be the answer."""
    if node.evaluation is None or node.score is None or not is_eligible(node.evaluation):
        return 0.0
    return node.score.speedup


def is_improvement(node: Node, best: Node) -> bool:
    """Whether a node is faster than another one, and not just within a model's uncertainty."""
    if valid_speedup(node) <= valid_speedup(best) or node.evaluation is None:
        return False
    return best.evaluation is None or not are_tied(node.evaluation, best.evaluation)


def write_answer(folder: RunFolder, search: TreeSearch, answer: Answer) -> None:
    """Write the kernel of an answer, then best/answer.json, which is there only when both are. Raises RunError."""
    path = folder.best / "answer.json"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} can't be replaced: {error}.") from error
    if answer.node is not None:
        kernel = search.kernel(answer.node)
        write_text(folder.best / f"kernel{kernel.language.suffix}", kernel.source)
    write_text(path, msgspec.json.encode(answer).decode() + "\n")


def read_answer(folder: RunFolder) -> Answer | None:
    """The answer of a run; None while its search hasn't stopped yet. Raises RunError."""
    path = folder.best / "answer.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except FileNotFoundError:
        return None
    except (OSError, *UNDECODABLE) as error:
        raise RunError(f"{path} can't be read: {error}.") from error
