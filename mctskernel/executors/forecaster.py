"""Forecasts: a surrogate predicts the edits that may be tried next, and what it says is journalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mctskernel.core.executor import Prediction, Surrogate
from mctskernel.core.kernel import Kernel
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
"""Predictions in flight for each that can run at once: one is ready when another ends, and none is stale."""

POLL_SECONDS = 0.1


@dataclass
class Forecaster:
    """Predicts the kernel of the node that comes next and those of its edits, each once.

    With `wait` the search waits for the answers, and the same seed makes the same tree.
    """

    tree_search: TreeSearch
    surrogate: Surrogate
    wait: bool
    _known: dict[str, Prediction | None] = field(default_factory=dict)
    _in_flight: dict[int, str] = field(default_factory=dict)
    _tickets: int = 0
    # By node and edit (None: the node's own kernel), the identity of the kernel; None if none costs an evaluation.
    _targets: dict[tuple[int, int | None], str | None] = field(default_factory=dict)

    def predict_next(self, is_over: Callable[[], bool]) -> None:
        """Ask about the edits of the node that comes next, and record what was answered.

        Waits for nothing once the search `is_over`.
        """
        self._collect(0.0)
        for node, edit in self._missing():
            if not self.wait and len(self._in_flight) >= QUEUED_PER_PROCESS * self.surrogate.capacity:
                break
            kernel = self._kernel(node, edit)
            self._targets[node, edit] = None if kernel is None else self._ask(kernel)
        while self.wait and self._in_flight and not is_over():
            self._collect(POLL_SECONDS)
        self._record_answers()

    def _ask(self, kernel: Kernel) -> str:
        if kernel.identity not in self._known and kernel.identity not in self._in_flight.values():
            self._in_flight[self._tickets] = kernel.identity
            self.surrogate.submit(self._tickets, kernel)
            self._tickets += 1
        return kernel.identity

    def _collect(self, timeout: float) -> None:
        for ticket, prediction in self.surrogate.wait(timeout):
            self._known[self._in_flight.pop(ticket)] = prediction

    def _missing(self) -> Iterator[tuple[int, int | None]]:
        step = self.tree_search.next_step()
        if not isinstance(step, Step):
            return
        node = self.tree_search.tree.nodes[step.node]
        ranked = sorted(range(len(node.edits)), key=lambda edit: (-node.edits[edit].prior, edit))
        first = ranked[: BREADTH + BREADTH * len(node.children) // 2]
        if node.prediction is None and (node.id, None) not in self._targets:
            yield node.id, None
        for edit in first:
            if edit in node.untried and edit not in node.predictions and (node.id, edit) not in self._targets:
                yield node.id, edit

    def _kernel(self, node: int, edit: int | None) -> Kernel | None:
        """What is to be predicted; None for an edit that doesn't apply or makes a known kernel."""
        kernel = self.tree_search.kernel(node)
        if edit is None:
            return kernel
        try:
            made = apply(kernel, self.tree_search.edit(node, edit))
        except PatchError:
            return None
        return None if made.identity in self.tree_search.tree.by_identity else made

    def _record_answers(self) -> None:
        """Record what was answered, nodes before their edits and edits in order, whichever came first."""
        answered = [
            target
            for target, identity in self._targets.items()
            if identity is None or identity in self._known
        ]
        for number, edit in sorted(answered, key=lambda each: (each[0], -1 if each[1] is None else each[1])):
            if edit is not None and (number, None) in self._targets:
                continue
            node, identity = self.tree_search.tree.nodes[number], self._targets.pop((number, edit))
            prediction = None if identity is None else self._known[identity]
            if edit is not None or node.prediction is None:
                self.tree_search.predict(number, edit, self._recorded(node, edit, prediction))

    def _recorded(self, node: Node, edit: int | None, prediction: Prediction | None) -> PredictionRecord:
        if prediction is None:
            return PredictionRecord()
        terms = {name: seconds for name, seconds in prediction.terms.items() if seconds}
        own = node.prediction
        if edit is None or own is None or not own.seconds:
            return PredictionRecord(prediction.seconds, terms)
        gain = own.seconds / prediction.seconds
        sigma = self.surrogate.uncertainty(Prediction(own.seconds, own.terms), prediction)
        return PredictionRecord(prediction.seconds, terms, gain, sigma)
