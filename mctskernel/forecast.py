"""Forecasts: asks a surrogate about the edits that come next, and journals what it says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from mctskernel.core.kernel import Kernel
from mctskernel.core.surrogate import Prediction, Surrogate
from mctskernel.edits.patch import PatchError, apply
from mctskernel.tree.events import PredictionRecord
from mctskernel.tree.node import Node
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.strategies.strategy import Step

BREADTH = 8
"""How many of a node's edits are predicted, those with the greatest prior first; half as many again for each child.

A rule proposes 30 to 50 edits of a node, of which progressive widening tries a few.
"""

QUEUED_PER_PROCESS = 2
"""Predictions in flight for each that can run at once: one is at hand when another ends, and none is stale."""

POLL_SECONDS = 0.1

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
    surrogate: Surrogate
    wait: bool
    breadth: int = BREADTH
    _asked: dict[int, _Target] = field(default_factory=dict)
    _kernels: dict[int, Kernel] = field(default_factory=dict)
    _answers: dict[_Target, Prediction | None] = field(default_factory=dict)
    _known: dict[str, Prediction | None] = field(default_factory=dict)
    _tickets: int = 0

    def look_ahead(self, slots: int, is_over: Callable[[], bool]) -> None:
        """Ask about the edits of the nodes that come next, `slots` evaluations ahead, and journal what is answered.

        Waits for nothing once the search `is_over`.
        """
        self._collect(0.0)
        for target in self._missing(max(slots, self.tree_search.tree.policy.lookahead)):
            if not self.wait and len(self._asked) >= QUEUED_PER_PROCESS * self.surrogate.capacity:
                break
            self._ask(target)
        while self.wait and self._asked and not is_over():
            self._collect(POLL_SECONDS)
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
        if target in self._answers or target in self._asked.values():
            return True
        node = self.tree_search.tree.nodes[target.node]
        if target.edit is not None:
            return target.edit in node.predictions
        return node.prediction is not None

    def _ask(self, target: _Target) -> None:
        kernel = self._kernel(target)
        if kernel is None:
            self._answers[target] = None
        elif kernel.identity in self._known:
            self._answers[target] = self._known[kernel.identity]
        else:
            self._asked[self._tickets], self._kernels[self._tickets] = target, kernel
            self.surrogate.submit(self._tickets, kernel)
            self._tickets += 1

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

    def _collect(self, timeout: float) -> None:
        for ticket, prediction in self.surrogate.wait(timeout):
            self._known[self._kernels.pop(ticket).identity] = prediction
            self._answers[self._asked.pop(ticket)] = prediction

    def _record_answers(self) -> None:
        """Journal what was answered, nodes before their edits and edits in order, whichever came first."""
        order = sorted(self._answers, key=lambda each: (each.node, -1 if each.edit is None else each.edit))
        for target in order:
            node = self.tree_search.tree.nodes[target.node]
            if target.edit is not None and _Target(node.id, None) in self._asked.values():
                continue
            prediction = self._answers.pop(target)
            record = self._record(node, prediction, of_edit=target.edit is not None)
            if target.edit is not None or node.prediction is None:
                self.tree_search.predicted(node.id, target.edit, record)

    def _record(self, node: Node, prediction: Prediction | None, *, of_edit: bool) -> PredictionRecord:
        if prediction is None:
            return NO_OPINION
        terms = {name: seconds for name, seconds in prediction.terms.items() if seconds}
        record = PredictionRecord(prediction.seconds, terms)
        if not of_edit:
            return record
        ties = tuple(
            edit
            for edit, other in sorted(node.predictions.items())
            if (known := _prediction(other)) and self._are_tied(prediction, known)
        )
        own = _prediction(node.prediction)
        if own is None:
            return msgspec.structs.replace(record, ties=ties)
        gain, sigma = own.seconds / prediction.seconds, self.surrogate.uncertainty(own, prediction)
        return msgspec.structs.replace(record, ties=ties, gain=gain, sigma=sigma)

    def _are_tied(self, first: Prediction, second: Prediction) -> bool:
        return abs(math.log(first.seconds / second.seconds)) <= self.surrogate.uncertainty(first, second)


def _prediction(record: PredictionRecord | None) -> Prediction | None:
    return Prediction(record.seconds, record.terms) if record is not None and record.seconds else None
