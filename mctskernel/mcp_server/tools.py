"""The tools: what each takes, and how it answers. An agent reads the docstrings of what they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mctskernel.answer import believed_speedup
from mctskernel.asks import AskedCause, RepliedEdit, Reply
from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.mcp_server.answers import (
    LOG_LENGTH,
    MESSAGE_LENGTH,
    Asked,
    BestPath,
    ListedNode,
    ListedRun,
    ListedTask,
    Listing,
    NodeDetails,
    Page,
    PathStep,
    Profile,
    Status,
    ToldEdits,
    TreePart,
    asked_node,
    cut,
    shortened,
)
from mctskernel.mcp_server.engine import Engine, Watch
from mctskernel.mcp_server.errors import MENDABLE, RequestError
from mctskernel.mcp_server.texts import TEXTS, address, read_text, task_of
from mctskernel.profile import profile_node
from mctskernel.profiling.ncu import Finding
from mctskernel.report.explained import explained
from mctskernel.report.view import View
from mctskernel.search import spent_seconds
from mctskernel.session import told_of
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import STARTING_KERNEL, edit_title, run_seconds

AGENT = "agent"
"""Who proposed, where a client doesn't say its name."""

RunName = Annotated[str, Meta(description="The name of a run.")]
NodeNumber = Annotated[int, Meta(ge=0, description="The number of a node; 0 is the starting kernel.")]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool takes."""


class SearchList(Arguments, frozen=True):
    """List the tasks that a run can be begun on, and the newest runs."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Runs, at the most.")] = 20


class SearchCreate(Arguments, frozen=True):
    """Begin a run on a task: its starting kernel is evaluated, and the first node that needs edits comes back."""

    task: Annotated[str, Meta(description="The name of a task.")]
    run: Annotated[str | None, Meta(description="A name for the run; made of task and time if left out.")] = (
        None
    )
    language: Language = Language.CUDA
    evaluations: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The budget. [default: all that the user allows]")
    ] = None
    seed: Annotated[int, Meta(ge=0)] = 0


class SearchAsk(Arguments, frozen=True):
    """The nodes that need edits next, chosen by the tree search, with the evidence of each: what binds the kernel, how
    it was made, what was tried on it. Asking twice says the same. No nodes: the search has ended."""

    run: RunName
    count: Annotated[int, Meta(ge=1, le=8, description="Nodes, at the most.")] = 2


class SearchTell(Arguments, frozen=True):
    """Propose edits of a node, asked for or not. Each is built, verified against the reference, timed and diagnosed by
    the engine; those that promise most first. Several different edits at once are welcome. Takes about a second an
    evaluation, more on large kernels; reports progress; cancelled, it loses nothing."""

    run: RunName
    node: NodeNumber
    edits: Annotated[
        tuple[RepliedEdit, ...],
        Meta(min_length=1, max_length=32, description="Each has either a whole `source` or a `patch`."),
    ]


class SearchFinish(Arguments, frozen=True):
    """End a search now: the fastest kernels face the last gate (held-out shapes, fresh seeds), the first that passes is
    the answer. Happens by itself when the budget is spent. The run can be asked again afterwards."""

    run: RunName


class SearchStatus(Arguments, frozen=True):
    """How a run stands: evaluations, outcomes, the remaining budget, the best node."""

    run: RunName


class SearchTree(Arguments, frozen=True):
    """Nodes of the tree, the fastest first."""

    run: RunName
    below: Annotated[NodeNumber, Meta(description="Only this node and what was made of it.")] = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class SearchBest(Arguments, frozen=True):
    """The path from the starting kernel to the best one: each edit, its gain and what it relieved."""

    run: RunName


class SearchRead(Arguments, frozen=True):
    """Read a whole text by its mctskernel:// address, for clients that can't read resources."""

    uri: Annotated[str, Meta(max_length=500)]
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 16_000


class NodeShow(Arguments, frozen=True):
    """A node: the edit that made it, its outcome with message and log, what the edit did, and what was tried on it."""

    run: RunName
    node: NodeNumber


class NodeProfile(Arguments, frozen=True):
    """Profile a node: what binds its kernel, from the recorded counters or the model's terms. With `ncu` it also runs
    under Nsight Compute for what its rules find: about half a minute, on a GPU only."""

    run: RunName
    node: NodeNumber
    ncu: bool = False


@dataclass(frozen=True)
class Call:
    """What a tool works with: `client` is the name of the program that calls."""

    engine: Engine
    watch: Watch
    client: str = AGENT


@dataclass(frozen=True)
class Tool:
    """A tool with the types of what it takes and answers."""

    name: str
    takes: type[Arguments]
    answers: type[msgspec.Struct]
    run: Callable[[Call, Any], msgspec.Struct]
    reads_only: bool = True

    @property
    def description(self) -> str:
        """What an agent is told of it."""
        return " ".join((getdoc(self.takes) or "").split())


def search_list(call: Call, asked: SearchList) -> Listing:
    """Tasks and runs."""
    tasks, runs, problems = [], [], []
    for name, folder in call.engine.task_folders().items():
        try:
            tasks.append(ListedTask(name, load_task(folder).summary))
        except MENDABLE as error:
            problems.append(f"Task {name}: {error}")
    names = call.engine.run_names()
    for name in names[: asked.limit]:
        try:
            runs.append(_listed_run(name, call.engine.view(name)))
        except MENDABLE as error:
            problems.append(f"Run {name}: {error}")
    return Listing(tuple(tasks), tuple(runs), len(names), tuple(problems))


def search_create(call: Call, asked: SearchCreate) -> Asked:
    """A new run."""
    run, asks, ending = call.engine.create(
        asked.task,
        call.watch,
        run=asked.run,
        language=asked.language,
        evaluations=asked.evaluations,
        seed=asked.seed,
    )
    view = call.engine.view(run)
    nodes = tuple(asked_node(run, ask) for ask in asks)
    return Asked(ending, nodes, _status(run, view), task_of(view))


def search_ask(call: Call, asked: SearchAsk) -> Asked:
    """The next nodes."""
    asks, ending = call.engine.ask(asked.run, asked.count, call.watch)
    nodes = tuple(asked_node(asked.run, ask) for ask in asks)
    return Asked(ending, nodes, _status(asked.run, call.engine.view(asked.run)))


def search_tell(call: Call, asked: SearchTell) -> ToldEdits:
    """Edits evaluated."""
    reply = Reply(node=asked.node, edits=asked.edits, proposer=call.client)
    told, ending = call.engine.tell(asked.run, reply, call.watch)
    return ToldEdits(shortened(told), ending, _status(asked.run, call.engine.view(asked.run)))


def search_finish(call: Call, asked: SearchFinish) -> Status:
    """The last gate."""
    call.engine.finish(asked.run, call.watch)
    return _status(asked.run, call.engine.view(asked.run))


def search_status(call: Call, asked: SearchStatus) -> Status:
    """How a run stands."""
    return _status(asked.run, call.engine.view(asked.run))


def search_tree(call: Call, asked: SearchTree) -> TreePart:
    """The fastest nodes below one."""
    view = call.engine.view(asked.run)
    view.node(asked.below)
    below = [node for node in view.tree.nodes if asked.below in view.tree.lineage(node.id)]
    fastest = sorted(below, key=believed_speedup, reverse=True)[: asked.limit]
    nodes = tuple(_listed(view, node) for node in fastest)
    return TreePart(nodes, len(below), address(asked.run, "tree"))


def search_best(call: Call, asked: SearchBest) -> BestPath:
    """The best path."""
    view = call.engine.view(asked.run)
    steps = tuple(
        PathStep(
            step.node,
            step.edit.title if step.edit else STARTING_KERNEL,
            step.edit.category if step.edit else "",
            step.seconds,
            step.gain,
            step.speedup,
            step.before.summary if step.before else "",
            address(asked.run, "diff", step.node),
        )
        for step in view.steps
    )
    source = address(asked.run, "source", view.best.id)
    return BestPath(steps, view.gate, source, address(asked.run, "trajectory"))


def search_read(call: Call, asked: SearchRead) -> Page:
    """Part of a text."""
    text, _ = read_text(call.engine, asked.uri)
    end = asked.offset + asked.limit
    return Page(text[asked.offset : end], len(text), end if end < len(text) else None)


def node_show(call: Call, asked: NodeShow) -> NodeDetails:
    """One node."""
    view = call.engine.view(asked.run)
    node = view.node(asked.node)
    evaluation = node.evaluation
    edit = None if node.parent is None or node.edit is None else view.tree.nodes[node.parent].edits[node.edit]
    comparison = view.comparison(node.id)
    told = (told_of(view.tree, node.id, number) for number in range(len(node.edits)))
    return NodeDetails(
        node=node.id,
        parent=node.parent,
        title=edit_title(view.tree, node),
        rationale=cut(edit.rationale, MESSAGE_LENGTH) if edit else "",
        outcome=node.outcome,
        numbers=evaluation.source if evaluation else None,
        seconds=run_seconds(evaluation) if evaluation else None,
        speedup=believed_speedup(node),
        message=cut(evaluation.message, MESSAGE_LENGTH) if evaluation else "",
        log=cut(evaluation.log, LOG_LENGTH) if evaluation else "",
        quarantine=evaluation.quarantine if evaluation else "",
        flags=evaluation.flags if evaluation else (),
        what_the_edit_did=comparison.sentences if comparison else (),
        edits=shortened(told),
        uris=tuple(address(asked.run, kind, node.id) for kind, text in TEXTS.items() if text.of_node),
    )


def node_profile(call: Call, asked: NodeProfile) -> Profile:
    """What binds a kernel."""
    view = call.engine.view(asked.run)
    evaluation = view.evaluation(asked.node)
    if not evaluation.timings:
        raise RequestError(
            f"Node {asked.node} was not timed, so nothing binds it: {evaluation.outcome}: "
            f"{cut(evaluation.message, MESSAGE_LENGTH)}"
        )
    findings: tuple[Finding, ...] = ()
    if asked.ncu:
        with call.engine.alone(call.watch):
            findings = profile_node(view, asked.node, lambda _: None).findings
    found = explained(f"node {asked.node}", evaluation)
    return Profile(
        node=asked.node,
        numbers=found.source,
        seconds=found.seconds,
        low=found.low,
        high=found.high,
        sentences=found.sentences,
        doubt=found.doubt,
        terms=found.terms,
        busy=found.busy,
        causes=tuple(AskedCause(cause.bottleneck, cause.share, cause.sentence) for cause in found.causes),
        findings=findings,
        counters_uri=address(asked.run, "counters", asked.node),
    )


def _status(run: str, view: View) -> Status:
    configuration = view.manifest.configuration
    # Of a search that went on after its last gate the answer may be slower than what was found since.
    fastest = max(view.tree.nodes or (view.best,), key=believed_speedup)
    evaluation = fastest.evaluation
    seconds = spent_seconds(read_events(view.folder.journal)) + configuration.spent.seconds
    return Status(
        run=run,
        task=configuration.task,
        language=configuration.language,
        device=view.device,
        numbers=evaluation.source if evaluation else None,
        evaluations=view.evaluations,
        outcomes=view.outcomes,
        remaining=configuration.budget.left(view.evaluations, seconds, view.tree.dollars),
        best=fastest.id,
        best_speedup=believed_speedup(fastest),
        answer=view.answer.node if view.answer else None,
        gate=view.gate,
        task_uri=address(run, "task"),
    )


def _listed_run(name: str, view: View) -> ListedRun:
    speedup = believed_speedup(view.best) if view.tree.nodes else 0.0
    return ListedRun(name, view.manifest.configuration.task, view.device, view.evaluations, speedup)


def _listed(view: View, node: Node) -> ListedNode:
    parent = believed_speedup(view.tree.nodes[node.parent]) if node.parent is not None else 0.0
    speedup = believed_speedup(node)
    return ListedNode(
        node.id,
        node.parent,
        edit_title(view.tree, node),
        node.outcome,
        speedup / parent if parent > 0 else 0.0,
        speedup,
        sum(not fate.reason and fate.node is None for fate in node.fates),
    )


TOOLS: tuple[Tool, ...] = (
    Tool("search_list", SearchList, Listing, search_list),
    Tool("search_create", SearchCreate, Asked, search_create, reads_only=False),
    Tool("search_ask", SearchAsk, Asked, search_ask, reads_only=False),
    Tool("search_tell", SearchTell, ToldEdits, search_tell, reads_only=False),
    Tool("search_finish", SearchFinish, Status, search_finish, reads_only=False),
    Tool("search_status", SearchStatus, Status, search_status),
    Tool("search_tree", SearchTree, TreePart, search_tree),
    Tool("search_best", SearchBest, BestPath, search_best),
    Tool("search_read", SearchRead, Page, search_read),
    Tool("node_show", NodeShow, NodeDetails, node_show),
    Tool("node_profile", NodeProfile, Profile, node_profile, reads_only=False),
)
