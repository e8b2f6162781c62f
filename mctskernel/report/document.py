"""The view document: what every graphical host shows of a run at once, as plain data that JSON holds.

What only a selected node needs is made and sent apart (`mctskernel.report.parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.profiling.counters import DRAM_BYTES
from mctskernel.profiling.quantities import time_text
from mctskernel.report.edit_success import EditSuccess, edit_success
from mctskernel.report.failures import FailureKind, failure_kinds
from mctskernel.report.gpus import gpu_sentences
from mctskernel.report.progress import Moment, Progress
from mctskernel.report.roofline import Roofline, roofline
from mctskernel.report.view import View
from mctskernel.starts import origin
from mctskernel.tree.backup import VALUES
from mctskernel.tree.events import EditRecord, Evaluated, Event, Submitted
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.selection_account import can_account
from mctskernel.tree.trajectory import STARTING_KERNEL, run_seconds

SCHEMA = "mctskernel.view"
SCHEMA_VERSION = 1


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. `best` and its figures are None while nothing was evaluated with success."""

    task: str
    device: str
    numbers: str
    best: int | None
    speedup: float | None
    time: str
    starting_time: str
    state: str
    evaluations: int
    outcomes: dict[str, int]
    sentences: tuple[str, ...]
    unanchored: bool


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the tree. Seconds are of one run; `gain` is the parent's time over its own."""

    id: int
    parent: int | None = None
    title: str
    category: str = ""
    proposer: str = ""
    depth: int = 0
    outcome: str | None = None
    guard: str = ""
    message: str = ""
    quarantine: str = ""
    flags: int = 0
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    speedup: float | None = None
    gain: float | None = None
    reward: float | None = None
    visits: int = 0
    value: float | None = None
    prior: float | None = None
    bottleneck: str = ""
    cost_seconds: float = 0.0
    predicted_gain: float | None = None


class Growth(msgspec.Struct, frozen=True):
    """The order in which nodes went to be evaluated (their numbers) and came back (minus their numbers, less 1)."""

    steps: tuple[int, ...]


class Fact(msgspec.Struct, frozen=True):
    """A line of a table of facts about the run."""

    name: str
    value: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a graphical host shows it before anything is selected."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    headline: Headline
    nodes: tuple[NodeRow, ...]
    transpositions: tuple[tuple[int, int], ...]
    growth: Growth
    progress: tuple[Moment, ...]
    best_path: tuple[int, ...]
    failures: tuple[FailureKind, ...]
    edits: tuple[EditSuccess, ...]
    roofline: Roofline | None
    counters: tuple[str, ...]
    accounts: bool
    environment: tuple[Fact, ...]


def view_document(view: View) -> Document:
    """The document of a run. Raises JournalError and EvidenceError."""
    found = _gather(read_events(view.folder.journal), view)
    tree, best = view.tree, _best(view, found.progress)
    edits = _edits(tree)
    rows = tuple(_row(tree, node, edits.get(node.id), found.brief.get(node.id)) for node in tree.nodes)
    return Document(
        headline=_headline(view, best, rows),
        nodes=rows,
        transpositions=tuple((edge.parent, edge.child) for edge in tree.edges if edge.transposition),
        growth=Growth(tuple(found.growth)),
        progress=tuple(found.progress),
        best_path=() if best is None else tuple(tree.lineage(best)),
        failures=failure_kinds(rows),
        edits=edit_success(rows),
        roofline=roofline(view, found.traffic),
        counters=tuple(found.counters),
        accounts=can_account(tree.policy.strategy),
        environment=tuple(_environment(view)),
    )


class Brief(msgspec.Struct, frozen=True):
    """Of an evaluation, what the tree shows."""

    numbers: str
    message: str
    guard: str
    quarantine: str
    flags: int
    seconds: float | None
    low: float | None
    high: float | None
    bottleneck: str
    cost_seconds: float


@dataclass
class _Gathered:
    """What one pass over the journal tells."""

    brief: dict[int, Brief] = field(default_factory=dict)
    growth: list[int] = field(default_factory=list)
    progress: list[Moment] = field(default_factory=list)
    counters: dict[str, None] = field(default_factory=dict)
    traffic: dict[int, tuple[float, float]] = field(default_factory=dict)


def _gather(events: Iterator[Event], view: View) -> _Gathered:
    found, progress = _Gathered(), Progress(view.manifest.configuration.spent)
    known = len(view.tree.nodes)
    for event in events:
        moment = progress.take(event)
        if isinstance(event, Submitted) and event.node < known:
            found.growth.append(event.node)
        elif isinstance(event, Evaluated) and moment is not None and event.node < known:
            found.growth.append(-event.node - 1)
            found.progress.append(moment)
            found.brief[event.node] = _brief(event.evaluation)
            found.counters.update(dict.fromkeys(event.evaluation.counters))
            if (moved := event.evaluation.counters.get(DRAM_BYTES)) and event.evaluation.timings:
                found.traffic[event.node] = (moved, event.evaluation.timings[0].seconds)
    return found


def _brief(evaluation: Evaluation) -> Brief:
    timings = evaluation.timings
    diagnosis = evaluation.diagnosis
    return Brief(
        str(evaluation.source),
        evaluation.message,
        str(evaluation.guard or ""),
        evaluation.quarantine,
        len(evaluation.flags),
        run_seconds(evaluation),
        # The interval of one shape; of several, only the geometric mean is a node's time.
        timings[0].low if len(timings) == 1 else None,
        timings[0].high if len(timings) == 1 else None,
        str(diagnosis.causes[0].bottleneck) if diagnosis and diagnosis.causes else "",
        evaluation.cost_seconds,
    )


def _row(tree: Tree, node: Node, edit: EditRecord | None, brief: Brief | None) -> NodeRow:
    visits = int(tree.node_statistics.visits[node.id])
    parent = tree.nodes[node.parent] if node.parent is not None else None
    speedup = node.score.speedup if node.score and node.score.speedup > 0 else None
    before = parent.score.speedup if parent is not None and parent.score else 0.0
    row = NodeRow(
        id=node.id,
        parent=node.parent,
        title=edit.title if edit else STARTING_KERNEL,
        category=str(edit.category) if edit else "",
        proposer=edit.proposer if edit else "",
        depth=node.depth,
        outcome=str(node.outcome) if node.outcome else None,
        speedup=_short(speedup),
        gain=_short(speedup / before) if speedup and before > 0 else None,
        reward=_short(node.score.reward) if node.score else None,
        visits=visits,
        value=_short(float(VALUES[tree.policy.value](tree.node_statistics, node.id))) if visits else None,
        prior=_short(edit.prior) if edit else None,
        predicted_gain=_short(node.prediction.gain) if node.prediction and node.prediction.gain else None,
    )
    if brief is None:
        return row
    return msgspec.structs.replace(
        row,
        guard=brief.guard,
        message=brief.message,
        quarantine=brief.quarantine,
        flags=brief.flags,
        seconds=_short(brief.seconds),
        low=_short(brief.low),
        high=_short(brief.high),
        bottleneck=brief.bottleneck,
        cost_seconds=_short(brief.cost_seconds) or 0.0,
    )


def _short(value: float | None) -> float | None:
    """A number with the digits that anybody reads."""
    return None if value is None else float(f"{value:.6g}")


def _best(view: View, progress: Sequence[Moment]) -> int | None:
    """The node of the answer, or the fastest so far; None while nothing was right and timed."""
    if view.answer is not None and view.answer.node is not None:
        return view.answer.node
    return progress[-1].best if progress else None


def _edits(tree: Tree) -> dict[int, EditRecord]:
    """The edits that made the nodes. Those of one node lie together in the journal, so they are read in turn."""
    made = sorted((node.parent, node.id, node.edit) for node in tree.nodes if node.parent is not None)
    return {number: tree.nodes[parent].edits[edit] for parent, number, edit in made if edit is not None}


def _headline(view: View, best: int | None, rows: tuple[NodeRow, ...]) -> Headline:
    tree = view.tree
    root = rows[0] if rows else None
    shown = rows[best] if best is not None else None
    evaluation = tree.nodes[best].evaluation if best is not None else None
    return Headline(
        task=view.manifest.configuration.task,
        device=view.device,
        numbers=str(evaluation.source) if evaluation else "",
        best=best,
        speedup=shown.speedup if shown else None,
        time=time_text(shown.seconds) if shown and shown.seconds else "",
        starting_time=time_text(root.seconds) if root and root.seconds else "",
        state=_state(view, best),
        evaluations=view.evaluations,
        outcomes=view.outcomes,
        sentences=tuple(_sentences(view, best)),
        unanchored=view.manifest.unanchored,
    )


def _state(view: View, best: int | None) -> str:
    if not view.tree.nodes:
        return "No kernel has been submitted yet."
    if best is None and view.outcomes:
        return "No kernel was right and timed: there is nothing but failures."
    if best is None:
        return "No evaluation has come back yet."
    return view.gate


def _sentences(view: View, best: int | None) -> Iterator[str]:
    if best is not None and (start := origin(view.tree, best)):
        yield f"It began at the starting point '{start}'."
    yield from gpu_sentences(view.gpus)
    if view.answer is not None:
        for node, reason in view.answer.refused:
            yield f"Refused by the last gate: node {node}: {reason}"
        for remark in view.answer.remarks:
            yield f"Noticed by the last gate: {remark}"
        if view.answer.node == 0:
            yield "Nothing faster than the starting kernel passed every guard."


def _environment(view: View) -> Iterator[Fact]:
    manifest = view.manifest
    yield Fact("created", manifest.created)
    yield Fact("mctskernel", manifest.version)
    for name, value in _flat("", msgspec.to_builtins(manifest.configuration)):
        yield Fact(name, value)
    for name, value in manifest.fingerprint.items():
        yield Fact(f"fingerprint.{name}", value)


def _flat(prefix: str, fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None and value != "":
            yield f"{prefix}{name}", str(value)
