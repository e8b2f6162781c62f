"""What a selected node shows: its source against others, its exchange with a model, logs, checks, times, reward."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mctskernel.core.evaluation import Cause, Check, Evaluation, Resources, Timing
from mctskernel.profiling.bottleneck import account
from mctskernel.report.gpus import conditions_text, gpu_name
from mctskernel.report.predictions import prediction_sentence
from mctskernel.report.sources import Change, Sources, changes
from mctskernel.report.view import View
from mctskernel.tree.events import EditRecord, ExchangeRecord, Proposed
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import trajectory

LONGEST_TEXT = 200_000
"""Characters of a log, prompt or reply that are shown."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange with a model that an edit came from."""

    model: str
    expert: str
    purpose: str
    prompt: str
    reply: str
    problem: str
    input_tokens: int
    output_tokens: int
    dollars: float
    seconds: float


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node in full. `source` are numbers of lines, the changes are those that make it of another node's source.

    `terms` are a model's parts of the time, `reward` those of the reward. `gpu` is what the GPU is called that took the
    times, `conditions` are its states meanwhile, a text for each of `timings`.
    """

    id: int
    source: tuple[int, ...]
    from_parent: tuple[Change, ...] = ()
    from_baseline: tuple[Change, ...] = ()
    rationale: str = ""
    expected_effect: str = ""
    factors: tuple[tuple[str, str], ...] = ()
    promise: float | None = None
    conversation: Conversation | None = None
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
    prediction: str = ""


class Detailer:
    """Makes the details of nodes of one run, whose sources share their lines."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._sources = Sources()
        self._known: dict[int, tuple[int, ...]] = {}
        self._exchanges: dict[tuple[int, object], ExchangeRecord] | None = None

    @property
    def sources(self) -> Sources:
        """The lines of the sources so far."""
        return self._sources

    def details(self, number: int) -> NodeDetails:
        """What there is to show of a node. Raises RunError, BlobError and EvidenceError."""
        view, node = self._view, self._view.node(number)
        source, evaluation = self._source(number), node.evaluation
        edit = self._edit(node)
        found = NodeDetails(
            id=number,
            source=source,
            from_parent=changes(self._source(node.parent), source) if node.parent is not None else (),
            from_baseline=changes(self._source(0), source) if number else (),
            rationale=edit.rationale if edit else "",
            expected_effect=edit.expected_effect if edit else "",
            factors=tuple(
                (each.name, f"{each.level:g}" if isinstance(each.level, float) else str(each.level))
                for each in edit.factors
            )
            if edit
            else (),
            promise=edit.promise if edit else None,
            conversation=self._conversation(node, edit) if edit else None,
            log=_shown(view.folder.blobs.get(node.log)) if node.log else "",
        )
        return _with_evidence(found, view, node, evaluation) if evaluation else found

    def _source(self, number: int) -> tuple[int, ...]:
        if number not in self._known:
            kernel = self._view.node(number).kernel
            text = self._view.folder.blobs.get(kernel.source)
            self._known[number] = self._sources.add(text, kernel.language)
        return self._known[number]

    def _edit(self, node: Node) -> EditRecord | None:
        if node.parent is None or node.edit is None:
            return None
        return self._view.tree.nodes[node.parent].edits[node.edit]

    def _conversation(self, node: Node, edit: EditRecord) -> Conversation | None:
        if edit.exchange is None:
            return None
        if self._exchanges is None:
            self._exchanges = dict(_exchanges(self._view))
        record = self._exchanges.get((node.parent or 0, edit.change or edit.factors))
        if record is None:
            return None
        blobs = self._view.folder.blobs
        return Conversation(
            model=record.model,
            expert=record.expert,
            purpose=str(record.purpose),
            prompt=_shown(blobs.get(record.prompt)),
            reply=_shown(blobs.get(record.reply)) if record.reply else "",
            problem=record.problem,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            dollars=record.dollars,
            seconds=record.seconds,
        )


def _exchanges(view: View) -> Iterator[tuple[tuple[int, object], ExchangeRecord]]:
    """The exchanges that edits came from, by node and change, which no two edits of a node share; the last reply first,
    since of equal edits the older one counts."""
    replies = [
        event for event in read_events(view.folder.journal) if isinstance(event, Proposed) and event.exchanges
    ]
    for reply in reversed(replies):
        for edit in reversed(reply.edits):
            if edit.exchange is not None and edit.exchange < len(reply.exchanges):
                yield (reply.node, edit.change or edit.factors), reply.exchanges[edit.exchange]


def _with_evidence(found: NodeDetails, view: View, node: Node, evaluation: Evaluation) -> NodeDetails:
    comparison = view.comparison(node.id)
    return msgspec.structs.replace(
        found,
        timings=evaluation.timings,
        gpu=gpu_name(evaluation.gpu) if evaluation.gpu else "",
        conditions=tuple(
            conditions_text(each.conditions) if each.conditions else "" for each in evaluation.timings
        ),
        checks=evaluation.checks,
        resources=evaluation.resources,
        causes=evaluation.diagnosis.causes if evaluation.diagnosis else (),
        evidence=account(evaluation),
        effects=comparison.sentences if comparison else (),
        flags=evaluation.flags,
        stage_seconds=evaluation.stage_seconds,
        terms=evaluation.terms,
        counters=evaluation.counters,
        reward=dict(node.score.terms) if node.score else {},
        prediction=prediction_sentence(trajectory(view.tree, node.id).steps[-1]),
    )


def _shown(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[{len(text) - LONGEST_TEXT} characters more are in the run's blobs]"
