"""What asking models came to: calls, tokens, money, and what was lost between a reply and an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mctskernel.core.evaluation import Outcome
from mctskernel.core.proposer import Loss
from mctskernel.tree.events import Event, ExchangeRecord, Proposed
from mctskernel.tree.node import Tree


@dataclass(frozen=True)
class Conversation:
    """The exchanges of a run. `losses` are replies and edits that came to nothing before they were tried.

    `silence` says why there was no reply, the last time that there was none.
    """

    exchanges: tuple[ExchangeRecord, ...]
    losses: Counter[Loss]
    edits: int
    silence: str = ""

    @property
    def dollars(self) -> float:
        """What was paid."""
        return sum(exchange.dollars for exchange in self.exchanges)


def conversation(events: Iterable[Event]) -> Conversation:
    """That of a journal."""
    exchanges: list[ExchangeRecord] = []
    losses: Counter[Loss] = Counter()
    edits, silence = 0, ""
    for event in events:
        if isinstance(event, Proposed):
            exchanges += event.exchanges
            losses.update(each.loss for each in event.dropped)
            edits += sum(edit.exchange is not None for edit in event.edits)
            silence = next((each.reason for each in event.dropped if each.loss is Loss.NO_REPLY), silence)
    return Conversation(tuple(exchanges), losses, edits, silence)


def conversation_sentences(found: Conversation, tree: Tree) -> tuple[str, ...]:
    """Where the edits that models wrote ended; nothing of a run that asked none."""
    if not found.exchanges:
        return ()
    answered = sum(bool(exchange.reply) for exchange in found.exchanges)
    recorded = sum(exchange.recorded for exchange in found.exchanges)
    asked = sum(exchange.input_tokens for exchange in found.exchanges)
    written = sum(exchange.output_tokens for exchange in found.exchanges)
    free = f", {recorded} of them from a recording" if recorded else ""
    lines = [
        f"{len(found.exchanges)} calls of models{free}, {answered} answered: {asked} tokens read, {written} written, "
        f"${found.dollars:.4f}.",
        f"{found.edits} edits of theirs: {_counts(_fates(tree))}.",
    ]
    if found.losses:
        lines.append(f"Lost before they could be tried: {_counts(found.losses)}.")
    if found.silence:
        lines.append(f"Why there was no reply, the last time: {found.silence}")
    return tuple(lines)


def _fates(tree: Tree) -> Counter[str]:
    """How the edits ended that came from models."""
    ended: Counter[str] = Counter()
    for node in tree.nodes:
        for edit, fate in zip(node.edits, node.fates, strict=True):
            if edit.exchange is None:
                continue
            made = tree.nodes[fate.node] if fate.node is not None else None
            if fate.reason:
                ended[Outcome.REJECTED] += 1
            elif fate.duplicate:
                ended[Outcome.DUPLICATE] += 1
            elif made is None or made.outcome is None:
                ended["not tried"] += 1
            else:
                ended[made.outcome] += 1
    return ended


def _counts(counts: Counter[str] | Counter[Loss]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"
