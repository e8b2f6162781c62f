"""Sentences about a whole run: its GPUs and its language models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

from mctskernel.core.evaluation import Conditions
from mctskernel.core.proposer import Exchange, Loss
from mctskernel.tree.events import Event, Proposed
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_attempt


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def gpu_sentences(kernels: Mapping[str, int]) -> tuple[str, ...]:
    """The GPUs of a run, from the number of kernels that each timed, by UUID; nothing for a run on one GPU."""
    if len(kernels) < 2:
        return ()
    timed = (f"{gpu_name(uuid)} timed {counted(count, 'kernel')}" for uuid, count in kernels.items())
    return (f"{', '.join(timed)}. Comparisons correct for their speeds.",)


def gpu_name(uuid: str) -> str:
    return f"GPU {uuid[:8]}"


def conditions_text(conditions: Conditions) -> str:
    """The clocks, temperature and power of a GPU during a timing, and the runs that were discarded."""
    states = (conditions.before, conditions.after)
    parts = [
        _range([state.sm_mhz for state in states], "MHz"),
        _range([state.celsius for state in states], "°C"),
        _range([round(state.watts) if state.watts else None for state in states], "W"),
        ", ".join(dict.fromkeys(str(event) for state in states for event in state.events)),
        f"{counted(conditions.dropped, 'run')} repeated" if conditions.dropped else "",
    ]
    return ", ".join(part for part in parts if part)


EditKey = tuple[int, Hashable]  # a node, and the content of an edit of it


def exchange_by_edit(events: Iterable[Event]) -> dict[EditKey, Exchange]:
    """The exchange that each edit came from; one that was offered again came from its first."""
    found: dict[EditKey, Exchange] = {}
    for event in events:
        if not isinstance(event, Proposed):
            continue
        for edit in event.edits:
            if edit.exchange is not None and 0 <= edit.exchange < len(event.exchanges):
                found.setdefault((event.node, edit.content), event.exchanges[edit.exchange])
    return found


def conversation_sentences(events: Iterable[Event], tree: Tree) -> tuple[str, ...]:
    """Calls of language models, tokens and dollars, how their edits ended, and what was lost; nothing without any."""
    exchanges: list[Exchange] = []
    losses: Counter[Loss] = Counter()
    edits, silence = 0, ""
    for event in events:
        if isinstance(event, Proposed):
            exchanges += event.exchanges
            losses.update(each.loss for each in event.dropped)
            edits += sum(edit.exchange is not None for edit in event.edits)
            silence = next((each.reason for each in event.dropped if each.loss is Loss.NO_REPLY), silence)
    if not exchanges:
        return ()
    recorded = sum(exchange.recorded for exchange in exchanges)
    from_recording = f", {recorded} from a recording" if recorded else ""
    lines = [
        f"{counted(len(exchanges), 'model call')}{from_recording}, {sum(bool(each.reply) for each in exchanges)} "
        f"answered: {sum(each.input_tokens for each in exchanges)} input and "
        f"{sum(each.output_tokens for each in exchanges)} output tokens, "
        f"${sum(each.dollars for each in exchanges):.4f}.",
        f"{counted(edits, 'edit')} from models: {_counts(_model_edit_outcomes(tree))}.",
    ]
    if losses:
        lines.append(f"Lost before they could be tried: {_counts(losses)}.")
    if silence:
        lines.append(f"The latest call without a reply: {silence}")
    return tuple(lines)


def _range(numbers: Sequence[int | None], unit: str) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _model_edit_outcomes(tree: Tree) -> Counter[str]:
    return Counter(
        attempt.outcome if (attempt := edit_attempt(tree, node, number)) else "not tried"
        for node in tree.nodes
        for number, edit in enumerate(node.edits)
        if edit.exchange is not None
    )


def _counts(counts: Counter[str] | Counter[Loss]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"
