"""What a judge said of edits beside what came of them: whether it was worth asking."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, groupby

from mctskernel.tree.node import Tree

LIKELY = 0.5
"""The promise from which on an edit counts as judged worth it."""


@dataclass(frozen=True)
class Judgement:
    """An edit of a node that was judged and then tried; `log_gain` is minus infinity where it gave no valid time."""

    node: int
    promise: float
    log_gain: float

    @property
    def is_gain(self) -> bool:
        """Whether it made the kernel faster."""
        return self.log_gain > 0


def judgements(tree: Tree) -> Iterator[Judgement]:
    """The judged edits whose kernels were evaluated, node by node."""
    for node in tree.nodes:
        if node.score is None or node.score.speedup <= 0:
            continue
        for edit, fate in zip(node.edits, node.fates, strict=True):
            made = tree.nodes[fate.node] if fate.node is not None and not fate.duplicate else None
            if edit.promise is None or made is None or made.score is None or made.evidence is None:
                continue
            is_valid = made.evidence.ok and not made.evidence.quarantine and made.score.speedup > 0
            log_gain = math.log(made.score.speedup / node.score.speedup) if is_valid else -math.inf
            yield Judgement(node.id, edit.promise, log_gain)


def judgement_sentences(tree: Tree) -> tuple[str, ...]:
    """How often a judge was right; nothing where none was asked, or nothing that it judged was tried."""
    found = list(judgements(tree))
    if not found:
        return ()
    likely = [each for each in found if each.promise >= LIKELY]
    unlikely = [each for each in found if each.promise < LIKELY]
    pairs, right = _pairs(found)
    of_pairs = f"; of {pairs} pairs of edits of one node it put {right:g} in the right order" if pairs else ""
    return (
        f"The judge: {_gains(likely)} of {len(likely)} edits that it found likely to help did, and {_gains(unlikely)} "
        f"of {len(unlikely)} others{of_pairs}.",
    )


def _gains(found: list[Judgement]) -> int:
    return sum(each.is_gain for each in found)


def _pairs(found: list[Judgement]) -> tuple[int, float]:
    """Pairs of one node whose gains differ, and those in the right order; of equal promise counts as a half."""
    pairs, right = 0, 0.0
    for _, group in groupby(found, key=lambda each: each.node):
        for first, second in combinations(group, 2):
            if first.log_gain == second.log_gain:
                continue
            pairs += 1
            if first.promise == second.promise:
                right += 0.5
            else:
                right += (first.promise > second.promise) == (first.log_gain > second.log_gain)
    return pairs, right
