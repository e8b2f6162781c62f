"""Sentences about a whole run: its GPUs, its language models, and the predictions of the surrogate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mctskernel.core.evaluation import Conditions, Outcome, Source
from mctskernel.core.proposer import Loss
from mctskernel.report.resampling import rank_correlation
from mctskernel.tree.events import EditRecord, Event, ExchangeRecord, PredictionRecord, Proposed
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import Step, trajectory


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
    """A short name for a GPU: the first digits of its UUID."""
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


EditKey = tuple[int, object]
"""A node, and what an edit of it changes."""


def edit_key(node: int, edit: EditRecord) -> EditKey:
    """The key of an edit of a node."""
    return node, edit.change or edit.factors


def exchange_by_edit(events: Iterable[Event]) -> dict[EditKey, ExchangeRecord]:
    """The exchange that each edit came from; one that was offered again came from its first."""
    found: dict[EditKey, ExchangeRecord] = {}
    for event in events:
        if not isinstance(event, Proposed):
            continue
        for edit in event.edits:
            if edit.exchange is not None and 0 <= edit.exchange < len(event.exchanges):
                found.setdefault(edit_key(event.node, edit), event.exchanges[edit.exchange])
    return found


def conversation_sentences(events: Iterable[Event], tree: Tree) -> tuple[str, ...]:
    """Calls of language models, tokens and dollars, how their edits ended, and what was lost; nothing without any."""
    exchanges: list[ExchangeRecord] = []
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


def prediction_sentence(step: Step) -> str:
    """The gain that was predicted for a step, and whether it was right; empty without a prediction."""
    found = step.prediction
    if found is None or not found.gain:
        return ""
    low, high = (found.gain * math.exp(sign * found.sigma) for sign in (-1, 1))
    tie = ", a tie with its parent" if found.is_tie else ""
    wrong = ""
    if step.gain > 0 and abs(_miss(found, step.gain)) > 1:
        wrong = f" Actual: {step.gain:.2f}x, {abs(_miss(found, step.gain)):.1f} standard deviations off."
    return f"Predicted: {found.gain:.2f}x ({low:.2f}x to {high:.2f}x){tie}.{wrong}"


def accuracy_sentences(tree: Tree) -> tuple[str, ...]:
    """The accuracy of a search's predictions over the edits that were predicted and measured.

    Nothing for fewer than three, nor for modelled times, which the model itself made.
    """
    known = list(_measured(tree))
    predicted = np.array([step.prediction.gain for step in known if step.prediction])
    correlation = rank_correlation(predicted, np.array([step.gain for step in known]))
    if math.isnan(correlation):
        return ()
    misses = [_miss(step.prediction, step.gain) for step in known if step.prediction]
    within = sum(abs(miss) <= 1 for miss in misses)
    furthest = known[int(np.argmax(np.abs(misses)))]
    return (
        f"Predictions of {len(known)} edits: rank correlation {correlation:.2f} with the measured gains, "
        f"{within} within one standard deviation.",
        f"Furthest off: node {furthest.node}. {prediction_sentence(furthest)}",
    )


def _range(numbers: Sequence[int | None], unit: str) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _model_edit_outcomes(tree: Tree) -> Counter[str]:
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


def _measured(tree: Tree) -> Iterator[Step]:
    for node in tree.nodes:
        if node.prediction is None or not node.prediction.gain or node.evaluation is None:
            continue
        step = trajectory(tree, node.id).steps[-1]
        if node.evaluation.source is not Source.MODELLED and step.gain > 0:
            yield step


def _miss(found: PredictionRecord, gain: float) -> float:
    """Standard deviations between a gain and its prediction."""
    return math.log(gain / found.gain) / found.sigma if found.sigma > 0 else math.inf
