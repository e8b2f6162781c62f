"""Forecasts: asks a surrogate about the edits that come next, and journals what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction
from mctskernel.edits.patch import PatchError, apply
from mctskernel.predictions import Predictions, prediction_of, record_of
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.node import Node
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Step

BREADTH = 8
"""How many of a node's edits are predicted, those with the greatest prior first; half as many again for each child.

A rule proposes 30 to 50 edits of a node, of which progressive widening tries a few.
"""

NO_OPINION = PredictionRecord()


class ForecastOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How predictions are made: by how many processes, and whether the search waits for them.

    Waited for, the same seed makes the same tree. Otherwise they come when they come, and until then an edit goes
    by its prior.
    """

    workers: int = 1
    wait: bool = False


@dataclass(frozen=True)
class _Target:
    """What is to be predicted: the kernel that an edit of a node makes, or the node's own (None)."""

    node: int
    edit: int | None


@dataclass
class Forecaster:
    """Keeps the predictions of a search ahead of it."""

    tree_search: TreeSearch
    predictions: Predictions
    wait: bool
    breadth: int = BREADTH
    # With the identity of its kernel, or None for what costs no evaluation and isn't worth a question.
    _asked: dict[_Target, str | None] = field(default_factory=dict)

    def look_ahead(self, slots: int, is_over: Callable[[], bool]) -> None:
        """Ask about the edits of the nodes that come next, `slots` evaluations ahead, and journal what is answered.

        Waits for nothing once the search `is_over`.
        """
        self.predictions.collect()
        for target in self._missing(max(slots, self.tree_search.tree.policy.lookahead)):
            if not self.wait and not self.predictions.has_room:
                break
            kernel = self._kernel(target)
            self._asked[target] = None if kernel is None else self.predictions.ask(kernel)
        if self.wait:
            self.predictions.settle(is_over)
        self._record_answers()

    def _missing(self, slots: int) -> Iterator[_Target]:
        steps = self.tree_search.outlook(slots)
        for number in dict.fromkeys(step.node for step in steps if isinstance(step, Step)):
            node = self.tree_search.tree.nodes[number]
            for target in (
                _Target(number, None),
                *(_Target(number, edit) for edit in self._next_edits(node)),
            ):
                if not self._is_known(target):
                    yield target

    def _next_edits(self, node: Node) -> list[int]:
        ranked = sorted(range(len(node.edits)), key=lambda edit: (-node.edits[edit].prior, edit))
        untried = set(node.untried)
        return [
            edit for edit in ranked[: self.breadth + self.breadth * node.children // 2] if edit in untried
        ]

    def _is_known(self, target: _Target) -> bool:
        if target in self._asked:
            return True
        node = self.tree_search.tree.nodes[target.node]
        if target.edit is not None:
            return target.edit in node.predictions
        return node.prediction is not None

    def _kernel(self, target: _Target) -> Kernel | None:
        """What is to be predicted; None for what costs no evaluation: an edit that doesn't apply, a known kernel."""
        kernel = self.tree_search.kernel(target.node)
        if target.edit is None:
            return kernel
        try:
            made = apply(kernel, self.tree_search.edit(target.node, target.edit))
        except PatchError:
            return None
        return None if made.identity in self.tree_search.tree.by_identity else made

    def _record_answers(self) -> None:
        """Journal what was answered, nodes before their edits and edits in order, whichever came first."""
        answered = [
            target
            for target, identity in self._asked.items()
            if identity is None or identity in self.predictions
        ]
        for target in sorted(answered, key=lambda each: (each.node, -1 if each.edit is None else each.edit)):
            node = self.tree_search.tree.nodes[target.node]
            if target.edit is not None and _Target(node.id, None) in self._asked:
                continue
            identity = self._asked.pop(target)
            prediction = None if identity is None else self.predictions[identity]
            record = self._record(node, prediction, of_edit=target.edit is not None)
            if target.edit is not None or node.prediction is None:
                self.tree_search.predicted(node.id, target.edit, record)

    def _record(self, node: Node, prediction: Prediction | None, *, of_edit: bool) -> PredictionRecord:
        if prediction is None:
            return NO_OPINION
        if not of_edit:
            return record_of(prediction)
        return self.predictions.against(prediction_of(node.prediction), prediction)
