"""The view model: everything that the terminal, Markdown, HTML, Jupyter and figures show of a run, as plain data.

`Headline` and `Story` are short and come from the tree; `Document` adds a row for each node, from one pass over the
journal. What only a selected node needs is in `mctskernel.report.details`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec

from mctskernel.answer import tied_with, valid_speedup
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.quantities import count_text, speedup_text, time_text
from mctskernel.profiling.changes import Comparison
from mctskernel.profiling.diagnosis import account
from mctskernel.profiling.guardrails import NOISE
from mctskernel.profiling.model.price import log_ratio_sigma, log_sigma
from mctskernel.report.baselines import Baselines
from mctskernel.report.notes import conversation_sentences, gpu_sentences
from mctskernel.report.progress import Moment, moments
from mctskernel.report.roofline import Roofline, roofline
from mctskernel.report.view import IN_FLIGHT, View
from mctskernel.tasks.starts import start_name
from mctskernel.tree.events import EditRecord, Evaluated, Submitted
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import STARTING_KERNEL, PathStep, edit_title, run_seconds

SCHEMA = "mctskernel.view"
SCHEMA_VERSION = 1
QUARANTINED = "quarantined"  # shown in place of the outcome of a kernel whose time is not trusted
EXAMPLES = 8  # nodes that are listed for each kind of failure
NOTEWORTHY = 1.15  # counts that changed by a smaller factor are not mentioned


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `best` and its figures are None while no evaluation has succeeded.

    `speedup` is over `start`, the fastest of the run's starts, which takes `starting_time`; `over_pytorch` says what it
    is over PyTorch, if that was timed.
    """

    task: str
    device: str
    numbers: str
    best: int | None
    speedup: float | None
    time: str
    start: str
    starting_time: str
    over_pytorch: str
    state: str
    evaluations: int
    outcomes: dict[str, int]
    sentences: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def speedup_text(self) -> str:
        """The speed-up, and whether it is measured or modelled; empty while there is none."""
        return f"{speedup_text(self.speedup, Source(self.numbers))} {self.numbers}" if self.speedup else ""


class StoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the best path. `moved` is the count that changed most, with its values."""

    node: int
    title: str
    time: str
    gain: float | None
    speedup: float
    moved: str
    why: str
    effects: tuple[str, ...]
    evidence: tuple[str, ...]


class Story(msgspec.Struct, frozen=True):
    """The steps of the best path, and sentences about predictions and language models."""

    steps: tuple[StoryStep, ...]
    notes: tuple[str, ...]


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the tree.

    Seconds are of one run, with their interval; `gain` is the parent's time over its own. `moved` is the count behind
    the time that its edit changed most.
    """

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
    moved: str = ""

    @property
    def state(self) -> str | None:
        """The outcome, or `quarantined`; None while it is in flight."""
        return QUARANTINED if self.quarantine and self.outcome == Outcome.OK else self.outcome


class FailureKind(msgspec.Struct, frozen=True):
    """Failures with the same outcome, detected by the same guard; `message` is the first one's."""

    outcome: str
    guard: str
    count: int
    nodes: tuple[int, ...]
    message: str


class EditSuccess(msgspec.Struct, frozen=True):
    """Evaluated edits of one category and proposer.

    `gained` made their parent faster and `lost` slower by more than `NOISE`. Gains are the parent's time over the
    child's, of the `valid` ones; None without any.
    """

    category: str
    proposer: str
    tried: int
    valid: int
    gained: int
    lost: int
    median_gain: float | None
    best_gain: float | None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a report shows it; `growth` has submissions (node's number) and results (minus that, less 1)."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    headline: Headline
    nodes: tuple[NodeRow, ...]
    transpositions: tuple[tuple[int, int], ...]
    growth: tuple[int, ...]
    progress: tuple[Moment, ...]
    best_path: tuple[int, ...]
    failures: tuple[FailureKind, ...]
    edits: tuple[EditSuccess, ...]
    roofline: Roofline | None
    counters: tuple[str, ...]
    environment: dict[str, str]


def view_headline(view: View) -> Headline:
    tree, best = view.tree, view.fastest
    first = tree.nodes[view.start].evaluation if tree.nodes else None
    evaluation = best.evaluation if best else None
    seconds, start = (run_seconds(each) if each else None for each in (evaluation, first))
    return Headline(
        task=view.manifest.configuration.task,
        device=view.device,
        numbers=str(evaluation.source) if evaluation else "",
        best=best.id if best else None,
        speedup=_short(best.score.speedup / view.start_speedup) if best and best.score else None,
        time=time_text(seconds) if seconds else "",
        start=view.start_title,
        starting_time=time_text(start) if start else "",
        over_pytorch=view.baselines.sentence if view.baselines else "",
        state=_state(view, best),
        evaluations=view.tree.evaluations,
        outcomes=view.outcomes,
        sentences=tuple(_sentences(view, best)),
        caveats=view.manifest.caveats,
    )


def view_story(view: View) -> Story:
    """The best path of a run, without steps while there is none, and notes on the whole."""
    best = view.fastest
    steps = view.steps if best else ()
    notes = (*conversation_sentences(read_events(view.folder.journal), view.tree),)
    return Story(tuple(story_step(view, step) for step in steps), notes)


def story_step(view: View, step: PathStep) -> StoryStep:
    comparison = view.comparison(step.node)
    return StoryStep(
        node=step.node,
        title=step.edit.title if step.edit else STARTING_KERNEL,
        time=time_text(step.seconds) if step.seconds is not None else "",
        gain=step.gain if step.edit and step.gain > 0 else None,
        speedup=step.speedup,
        moved=moved_most(comparison) if comparison else "",
        why=step.edit.rationale if step.edit else "",
        effects=comparison.sentences if comparison else (),
        evidence=(
            *account(view.evaluation(step.node)),
            *(cause.sentence for cause in (step.diagnosis.causes if step.diagnosis else ())),
        ),
    )


def view_document(view: View) -> Document:
    """The document of a run. Raises RunError."""
    tree, best, start = view.tree, view.fastest, view.start_speedup
    edits = _edits(tree)
    rows = tuple(_row(view, node, edits.get(node.id)) for node in tree.nodes)
    # The journal may have grown since the tree was read.
    known = len(tree.nodes)
    events = [e for e in read_events(view.folder.journal) if getattr(e, "node", 0) < known]
    growth = [
        event.node if isinstance(event, Submitted) else -event.node - 1
        for event in events
        if isinstance(event, Submitted | Evaluated)
    ]
    return Document(
        headline=view_headline(view),
        nodes=rows,
        transpositions=tuple(tree.transpositions),
        growth=tuple(growth),
        progress=tuple(
            replace(each, speedup=each.speedup / start, best_speedup=each.best_speedup / start)
            for each in moments(events, view.refused)
        ),
        best_path=tuple(tree.lineage(best.id)) if best else (),
        failures=failure_kinds(rows),
        edits=edit_success(rows),
        roofline=roofline(view),
        counters=tuple(
            dict.fromkeys(name for node in tree.nodes if node.evaluation for name in node.evaluation.counters)
        ),
        environment=_environment(view),
    )


def failure_kinds(rows: Iterable[NodeRow]) -> tuple[FailureKind, ...]:
    """The kinds of failure, quarantined times among them, the most frequent first."""
    kinds: defaultdict[tuple[str, str], list[NodeRow]] = defaultdict(list)
    for row in rows:
        if row.state is not None and row.state != Outcome.OK:
            kinds[row.state, row.guard].append(row)
    found = [
        FailureKind(
            state,
            guard,
            len(failed),
            tuple(row.id for row in failed[:EXAMPLES]),
            failed[0].message or failed[0].quarantine,
        )
        for (state, guard), failed in kinds.items()
    ]
    return tuple(sorted(found, key=lambda kind: -kind.count))


def edit_success(rows: Iterable[NodeRow]) -> tuple[EditSuccess, ...]:
    """A row for each category and proposer, the most often tried first."""
    kinds: defaultdict[tuple[str, str], list[NodeRow]] = defaultdict(list)
    for row in rows:
        if row.category and row.outcome is not None:
            kinds[row.category, row.proposer].append(row)
    found = []
    for (category, proposer), tried in kinds.items():
        valid = [row for row in tried if row.state == Outcome.OK]
        gains = [row.gain for row in valid if row.gain is not None]
        found.append(
            EditSuccess(
                category,
                proposer,
                len(tried),
                len(valid),
                sum(gain > 1 + NOISE for gain in gains),
                sum(gain < 1 - NOISE for gain in gains),
                statistics.median(gains) if gains else None,
                max(gains, default=None),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.tried, row.category, row.proposer)))


def moved_most(comparison: Comparison) -> str:
    """The count that changed by the largest factor, as `sectors per request 32 to 4`; empty if none did."""
    counts = {count.name: count for term in comparison.moved for count in term.counts}
    found = max(counts.values(), key=lambda count: count.size, default=None)
    if found is None or found.size < math.log(NOTEWORTHY):
        return ""
    before, after = (
        count_text(value) if value >= 1000 else f"{value:.3g}" for value in (found.before, found.after)
    )
    return f"{found.title} {before} to {after}"


def _row(view: View, node: Node, edit: EditRecord | None) -> NodeRow:
    parent = view.tree.nodes[node.parent] if node.parent is not None else None
    start, comparison = view.start_speedup, view.comparison(node.id)
    speedup = node.score.speedup if node.score and node.score.speedup > 0 else None
    before = parent.score.speedup if parent is not None and parent.score else 0.0
    evaluation = node.evaluation or IN_FLIGHT
    diagnosis = evaluation.diagnosis
    low, high = _interval(evaluation)
    return NodeRow(
        id=node.id,
        parent=node.parent,
        title=edit.title if edit else STARTING_KERNEL,
        category=str(edit.category) if edit else "",
        proposer=edit.proposer if edit else "",
        depth=node.depth,
        outcome=str(node.outcome) if node.outcome else None,
        speedup=_short(speedup / start) if speedup else None,
        gain=_short(speedup / before) if speedup and before > 0 else None,
        reward=_short(node.score.reward) if node.score else None,
        visits=node.visits,
        value=_short(node.reward_max) if node.visits else None,
        prior=_short(edit.prior) if edit else None,
        moved=moved_most(comparison) if comparison else "",
        message=evaluation.message,
        guard=str(evaluation.guard or ""),
        quarantine=evaluation.quarantine,
        flags=len(evaluation.flags),
        seconds=_short(run_seconds(evaluation)),
        low=_short(low),
        high=_short(high),
        bottleneck=str(diagnosis.causes[0].bottleneck) if diagnosis and diagnosis.causes else "",
        cost_seconds=_short(evaluation.cost_seconds) or 0.0,
    )


def _interval(evaluation: Evaluation) -> tuple[float | None, float | None]:
    """Of a measured median, or one standard deviation of a modelled time; several measured shapes have none."""
    seconds, timings = run_seconds(evaluation), evaluation.timings
    if seconds is not None and evaluation.source is Source.MODELLED and evaluation.terms:
        reach = math.exp(log_sigma(evaluation.terms))
        return seconds / reach, seconds * reach
    return (timings[0].low, timings[0].high) if len(timings) == 1 else (None, None)


def _short(value: float | None) -> float | None:
    """A number with as many digits as a report shows."""
    return None if value is None else float(f"{value:.6g}")


def _edits(tree: Tree) -> dict[int, EditRecord]:
    """The edits that made the nodes. Those of one node lie together in the journal, so they are read in turn."""
    made = sorted((node.parent, node.id, node.edit) for node in tree.nodes if node.parent is not None)
    return {number: tree.nodes[parent].edits[edit] for parent, number, edit in made if edit is not None}


def _state(view: View, best: Node | None) -> str:
    if not view.tree.nodes:
        return "No kernel has been submitted yet."
    if best is None and view.outcomes:
        return "No kernel is correct and timed: every evaluation failed."
    if best is None:
        return "No evaluation has finished yet."
    return " ".join((view.validation, *_tie(view, best)))


def _sentences(view: View, best: Node | None) -> Iterator[str]:
    if best is not None:
        yield from _start_sentences(view, best)
    if view.baselines is not None:
        yield _about_pytorch(view.baselines)
    yield from gpu_sentences(view.gpus)
    if view.answer is not None:
        for node, reason in view.answer.refused:
            yield f"Refused by the final validation: node {node}: {reason}"
        for note in view.answer.notes:
            yield f"Final validation: {note}"
        if view.answer.node == view.start:
            yield f"No kernel that passed every guard is faster than {view.start_title}."


def _tie(view: View, best: Node) -> Iterator[str]:
    """Why a faster node isn't the best."""
    other = tied_with(view.tree, best, view.refused)
    if other is None or other.evaluation is None or best.evaluation is None:
        return
    sigma = math.expm1(log_ratio_sigma(other.evaluation.terms, best.evaluation.terms))
    gain = f"{valid_speedup(other) / valid_speedup(best) - 1:.1%}"
    why = "fewer edits" if best.depth < other.depth else "found first"
    within = f"within the model's uncertainty of {sigma:.0%}"
    yield f"Node {other.id} is {gain} faster, {within}; chosen: node {best.id}, {why}."


def _about_pytorch(found: Baselines) -> str:
    """What PyTorch and the kernels took."""
    times = {**found.seconds, "the start": found.start_seconds, "the best": found.best_seconds}
    listed = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in times.items())
    where = f" at {found.shape}" if found.shape else ""
    return f"Interleaved with PyTorch {found.torch}{where}: {listed}. {found.problem}".rstrip()


def _start_sentences(view: View, best: Node) -> Iterator[str]:
    """Where the best kernel began, and what each start takes."""
    starts = {each: name for each in view.tree.nodes[0].children if (name := start_name(view.tree, each))}
    if not starts:
        return
    for each in view.tree.lineage(best.id):
        if each in starts:
            title = edit_title(view.tree, view.tree.nodes[each])
            yield f"Starting point: '{title.removeprefix('start from ')}'."
    times = {"the starting kernel": view.tree.nodes[0].evaluation} | {
        f"'{name}'": view.tree.nodes[each].evaluation for each, name in starts.items()
    }
    known = [
        f"{name} {time_text(took)}" for name, each in times.items() if each and (took := run_seconds(each))
    ]
    yield f"Starts: {', '.join(known)}."


def _environment(view: View) -> dict[str, str]:
    manifest = view.manifest
    return {
        "created": manifest.created,
        "mctskernel": manifest.version,
        **dict(_flat("", msgspec.to_builtins(manifest.configuration))),
        **{f"fingerprint.{name}": value for name, value in manifest.fingerprint.items()},
    }


def _flat(prefix: str, fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif value not in (None, "", []):
            yield f"{prefix}{name}", str(value)
