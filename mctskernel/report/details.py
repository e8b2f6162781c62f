"""The details of one node: source and diffs, the exchange with a model, log, checks, times, counters, reward."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

from mctskernel.core.evaluation import Cause, Check, Resources, Timing
from mctskernel.core.proposer import Exchange
from mctskernel.profiling.diagnosis import account
from mctskernel.report.notes import conditions_text, gpu_name
from mctskernel.report.view import IN_FLIGHT, View
from mctskernel.tree.blobs import get_exchange
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Node

Change = tuple[int, int, int, int]
"""First and last line (exclusive) in the old source, and those of the replacement in the new one."""


def changes(old: Sequence[str], new: Sequence[str]) -> tuple[Change, ...]:
    """The changes that turn the lines of the old source into those of the new one."""
    start = next(
        (at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    most = min(len(old), len(new)) - start
    end = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    # The matcher takes quadratic time, so the common start and end are removed first.
    matcher = SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False)
    return tuple(
        (a0 + start, a1 + start, b0 + start, b1 + start)
        for tag, a0, a1, b0, b1 in matcher.get_opcodes()
        if tag != "equal"
    )


LONGEST_TEXT = 200_000  # characters of a log, prompt or reply before it is cut


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node in full. Changes are of lines, against another node's source.

    `terms` are the parts of a modelled time, `reward` those of the reward. `gpu` names the GPU that measured the times,
    and `conditions` describes its state during each of `timings`.
    """

    id: int
    source: str
    language: str
    from_parent: tuple[Change, ...] = ()
    from_baseline: tuple[Change, ...] = ()
    rationale: str = ""
    expected_effect: str = ""
    factors: tuple[tuple[str, str], ...] = ()
    conversation: Exchange | None = None
    log: str = ""
    timings: tuple[Timing, ...] = ()
    gpu: str = ""
    conditions: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    resources: tuple[Resources, ...] = ()
    causes: tuple[Cause, ...] = ()
    evidence: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    stage_seconds: dict[str, float] = {}
    terms: dict[str, float] = {}
    counters: dict[str, float] = {}
    reward: dict[str, float] = {}


def node_details(view: View, number: int) -> NodeDetails:
    """The details of a node. Raises RunError."""
    node, source = view.node(number), view.source(number)
    found = node.evaluation or IN_FLIGHT
    lines, edit, comparison = source.split("\n"), view.tree.made_by(node), view.comparison(number)
    return NodeDetails(
        id=number,
        source=source,
        language=str(node.kernel.language),
        from_parent=() if node.parent is None else changes(view.source(node.parent).split("\n"), lines),
        from_baseline=changes(view.source(0).split("\n"), lines) if number else (),
        rationale=edit.rationale if edit else "",
        expected_effect=edit.expected_effect if edit else "",
        factors=tuple(
            (each.name, f"{each.level:g}" if isinstance(each.level, float) else str(each.level))
            for each in (edit.factors if edit else ())
        ),
        conversation=_conversation(view, node, edit) if edit else None,
        log=_shown(view.folder.blobs.get(node.log)) if node.log else "",
        timings=found.timings,
        gpu=gpu_name(found.gpu) if found.gpu else "",
        conditions=tuple(
            conditions_text(each.conditions) if each.conditions else "" for each in found.timings
        ),
        checks=found.checks,
        resources=found.resources,
        causes=found.diagnosis.causes if found.diagnosis else (),
        evidence=account(found),
        effects=comparison.sentences if comparison else (),
        flags=found.flags,
        stage_seconds=found.stage_seconds,
        terms=found.terms,
        counters=found.counters,
        reward=dict(node.score.terms) if node.score else {},
    )


def _conversation(view: View, node: Node, edit: EditRecord) -> Exchange | None:
    record = view.exchanges.get((node.parent or 0, edit.content)) if edit.exchange is not None else None
    if record is None:
        return None
    whole = get_exchange(view.folder.blobs, record)
    return msgspec.structs.replace(whole, prompt=_shown(whole.prompt), reply=_shown(whole.reply))


def _shown(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[{len(text) - LONGEST_TEXT} more characters are in the run's blobs]"
