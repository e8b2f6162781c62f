"""The tools: what each takes and answers. An agent reads their docstrings and schemas.

Answers are short: each long text is cut, with the address of the whole. All of it is data, no instruction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.external.mcp_engine import (
    AGENT_ERRORS,
    Engine,
    RequestError,
    Watch,
    address,
    read_text,
    task_of,
)
from mctskernel.external.session import (
    Ask,
    AskedAttempt,
    AskedCause,
    AskedEvidence,
    AskedTask,
    EditResult,
    RepliedEdit,
    Reply,
    edit_result,
)
from mctskernel.loop import StopReason, valid_speedup
from mctskernel.profiling.diagnosis import BusyTime
from mctskernel.profiling.model.explanation import ExplainedTerm
from mctskernel.profiling.ncu import Finding
from mctskernel.report.explained import explained
from mctskernel.report.node_profile import profile_node
from mctskernel.report.view import View
from mctskernel.run import spent_seconds
from mctskernel.tree.journal import read_events
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import STARTING_KERNEL, edit_title, run_seconds

AGENT = "agent"
"""The proposer's name where a client doesn't say its own."""

SOURCE_LENGTH = 12_000
"""Characters of a source in an answer: nearly every kernel whole."""

LOG_LENGTH = 2_000
MESSAGE_LENGTH = 400
ATTEMPTS = 8
"""How many edits that were tried an answer lists, of each kind."""

RunName = Annotated[str, Meta(description="The name of a run.")]
NodeNumber = Annotated[int, Meta(ge=0, description="The number of a node; 0 is the starting kernel.")]


class ListedRun(msgspec.Struct, frozen=True):
    """A run; `speedup` is that of its best kernel over the starting kernel."""

    run: str
    task: str
    device: str
    evaluations: int
    speedup: float


class Listing(msgspec.Struct, frozen=True):
    """Tasks with their summaries; runs, the newest first, of `total`; `problems` are of those that can't be read."""

    tasks: dict[str, str]
    runs: tuple[ListedRun, ...]
    total: int
    problems: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run. `numbers`: times are measured or modelled; `remaining` is null where there is no limit.

    `answer` is the node that passed the final validation, null while the search goes on; `best` is the fastest so far.
    """

    run: str
    task: str
    language: Language
    device: str
    numbers: Source | None
    evaluations: int
    outcomes: dict[str, int]
    remaining: Budget
    best: int
    best_speedup: float
    answer: int | None
    validation: str


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A node that needs edits. One that failed is to be repaired: `message` and `log` say what is wrong.

    `siblings` were tried on this kernel already: don't repeat them.
    """

    node: int
    source: str
    evidence: AskedEvidence
    lineage: tuple[AskedAttempt, ...]
    siblings: tuple[AskedAttempt, ...]
    elsewhere: tuple[AskedAttempt, ...]


class Asked(msgspec.Struct, frozen=True):
    """The nodes that need edits next; none when the search has ended, and `search` says why.

    `task` is given at the beginning of a run.
    """

    search: StopReason
    nodes: tuple[NodeRequest, ...]
    status: Status
    task: AskedTask | None = None


class Results(msgspec.Struct, frozen=True):
    """The result of each edit. One whose outcome is null waits until no other edit is more promising.

    `search` says whether the search has ended, and why.
    """

    edits: tuple[EditResult, ...]
    search: StopReason
    status: Status


class ListedNode(msgspec.Struct, frozen=True):
    """A node; `gain` is its parent's time over its own, 0 if unknown."""

    node: int
    parent: int | None
    title: str
    outcome: Outcome | None
    gain: float
    speedup: float
    untried_edits: int


class TreePart(msgspec.Struct, frozen=True):
    """Nodes of the tree, of `total`."""

    nodes: tuple[ListedNode, ...]
    total: int


class PathStep(msgspec.Struct, frozen=True):
    """A step of the best path: the edit, what it did and what bound the kernel that it changed."""

    node: int
    title: str
    category: str
    seconds: float | None
    gain: float
    speedup: float
    relieved: str


class BestPath(msgspec.Struct, frozen=True):
    """The path from the starting kernel to the best one."""

    steps: tuple[PathStep, ...]
    validation: str


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A node: the edit that made it, its outcome, and what the edit did."""

    node: int
    parent: int | None
    title: str
    rationale: str
    outcome: Outcome | None
    numbers: Source | None
    seconds: float | None
    speedup: float
    message: str
    log: str
    quarantine: str
    flags: tuple[str, ...]
    what_the_edit_did: tuple[str, ...]
    edits: tuple[EditResult, ...]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What binds a kernel: `terms` of a modelled time, `busy` units of a measured one, the causes behind them.

    `findings` are those of Nsight Compute's rules, if a report was asked for.
    """

    node: int
    numbers: Source
    seconds: float
    low: float
    high: float
    sentences: tuple[str, ...]
    doubt: str
    terms: tuple[ExplainedTerm, ...]
    busy: tuple[BusyTime, ...]
    causes: tuple[AskedCause, ...]
    findings: tuple[Finding, ...]


class Page(msgspec.Struct, frozen=True):
    """Part of a text; `next_offset` is null at its end."""

    text: str
    characters: int
    next_offset: int | None


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
    description: str
    takes: type[msgspec.Struct]
    answers: type[msgspec.Struct]
    run: Callable[..., msgspec.Struct]
    reads_only: bool


TOOLS: list[Tool] = []

_Function = TypeVar("_Function", bound=Callable[..., msgspec.Struct])


def tool(*, reads_only: bool = True) -> Callable[[_Function], _Function]:
    """Make a function a tool: its parameters after the first are the arguments, its docstring the description."""

    def register(function: _Function) -> _Function:
        hints = get_type_hints(function, include_extras=True)
        name = function.__name__
        fields = [
            (each.name, hints[each.name])
            if each.default is each.empty
            else (each.name, hints[each.name], each.default)
            for each in list(inspect.signature(function).parameters.values())[1:]
        ]
        takes = msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)
        description = " ".join((inspect.getdoc(function) or "").split())
        TOOLS.append(Tool(name, description, takes, hints["return"], function, reads_only))
        return function

    return register


@tool()
def search_list(
    call: Call, limit: Annotated[int, Meta(ge=1, le=100, description="Runs, at the most.")] = 20
) -> Listing:
    """List the tasks that a run can be begun on, and the newest runs."""
    tasks, runs, problems = {}, [], []
    for name, folder in call.engine.task_folders.items():
        try:
            tasks[name] = load_task(folder).summary
        except AGENT_ERRORS as error:
            problems.append(f"Task {name}: {error}")
    names = call.engine.run_names()
    for name in names[:limit]:
        try:
            runs.append(_listed_run(name, call.engine.view(name)))
        except AGENT_ERRORS as error:
            problems.append(f"Run {name}: {error}")
    return Listing(tasks, tuple(runs), len(names), tuple(problems))


@tool(reads_only=False)
def search_create(
    call: Call,
    *,
    task: Annotated[str, Meta(description="The name of a task.")],
    run: Annotated[
        str | None, Meta(description="A name for the run; made of task and time if left out.")
    ] = None,
    language: Language = Language.CUDA,
    evaluations: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The budget. [default: all that the user allows]")
    ] = None,
    seed: Annotated[int, Meta(ge=0)] = 0,
) -> Asked:
    """Begin a run on a task: its starting kernel is evaluated, and the first node that needs edits comes back."""
    name = call.engine.create(
        task, call.watch, run=run, language=language, evaluations=evaluations, seed=seed
    )
    return _asked(call, name, 1, task_of(call.engine.view(name)))


@tool(reads_only=False)
def search_ask(
    call: Call, run: RunName, count: Annotated[int, Meta(ge=1, le=8, description="Nodes, at the most.")] = 2
) -> Asked:
    """The nodes that need edits next, chosen by the tree search, with the evidence of each: what binds the kernel, how
    it was made, what was tried on it. Asking twice says the same. No nodes: the search has ended."""
    return _asked(call, run, count)


@tool(reads_only=False)
def search_tell(
    call: Call,
    run: RunName,
    node: NodeNumber,
    edits: Annotated[
        tuple[RepliedEdit, ...],
        Meta(min_length=1, max_length=32, description="Each has either a whole `source` or a `patch`."),
    ],
) -> Results:
    """Propose edits of a node, asked for or not. Each is built, verified against the reference, timed and diagnosed by
    the engine; those that promise most first. Several different edits at once are welcome. Takes about a second an
    evaluation, more on large kernels; reports progress; cancelled, it loses nothing."""
    reply = Reply(node=node, edits=edits, proposer=call.client)
    with call.engine.session(run, call.watch) as session:
        results = session.tell([reply])
    return Results(_cut_messages(results), session.stop_reason, _status(call, run))


@tool(reads_only=False)
def search_finish(call: Call, run: RunName) -> Status:
    """End a search now: the fastest kernels go through the final validation (held-out shapes, fresh seeds), the first
    that passes is the answer. Happens by itself when the budget is spent. The run can be asked again afterwards."""
    with call.engine.session(run, call.watch, finish=True) as session:
        session.ask(1)
    return _status(call, run)


@tool()
def search_status(call: Call, run: RunName) -> Status:
    """The state of a run: evaluations, outcomes, the remaining budget, the best node."""
    return _status(call, run)


@tool()
def search_tree(
    call: Call,
    run: RunName,
    below: Annotated[NodeNumber, Meta(description="Only this node and what was made of it.")] = 0,
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
) -> TreePart:
    """Nodes of the tree, the fastest first."""
    view = call.engine.view(run)
    view.node(below)
    found = [node for node in view.tree.nodes if below in view.tree.lineage(node.id)]
    fastest = sorted(found, key=valid_speedup, reverse=True)[:limit]
    return TreePart(tuple(_listed(view, node) for node in fastest), len(found))


@tool()
def search_best(call: Call, run: RunName) -> BestPath:
    """The path from the starting kernel to the best one: each edit, its gain and what it relieved."""
    view = call.engine.view(run)
    steps = tuple(
        PathStep(
            step.node,
            step.edit.title if step.edit else STARTING_KERNEL,
            step.edit.category if step.edit else "",
            step.seconds,
            step.gain,
            step.speedup,
            step.before.summary if step.before else "",
        )
        for step in view.steps
    )
    return BestPath(steps, view.validation)


@tool()
def search_read(
    call: Call,
    uri: Annotated[str, Meta(max_length=500)],
    offset: Annotated[int, Meta(ge=0)] = 0,
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 16_000,
) -> Page:
    """Read a whole text by its address, for clients that can't read resources: mctskernel://runs/RUN/ and task, tree or
    trajectory; mctskernel://runs/RUN/nodes/NODE/ and source, diff, log, counters or evaluation."""
    text, _ = read_text(call.engine, uri)
    end = offset + limit
    return Page(text[offset:end], len(text), end if end < len(text) else None)


@tool()
def node_show(call: Call, run: RunName, node: NodeNumber) -> NodeDetails:
    """A node: the edit that made it, its outcome with message and log, what the edit did, and what was tried on it."""
    view = call.engine.view(run)
    found = view.node(node)
    evaluation = found.evaluation
    edit = (
        None
        if found.parent is None or found.edit is None
        else view.tree.nodes[found.parent].edits[found.edit]
    )
    comparison = view.comparison(node)
    return NodeDetails(
        node=node,
        parent=found.parent,
        title=edit_title(view.tree, found),
        rationale=_cut(edit.rationale, MESSAGE_LENGTH) if edit else "",
        outcome=found.outcome,
        numbers=evaluation.source if evaluation else None,
        seconds=run_seconds(evaluation) if evaluation else None,
        speedup=valid_speedup(found),
        message=_cut(evaluation.message, MESSAGE_LENGTH) if evaluation else "",
        log=_cut(evaluation.log, LOG_LENGTH, address(run, "log", node)) if evaluation else "",
        quarantine=evaluation.quarantine if evaluation else "",
        flags=evaluation.flags if evaluation else (),
        what_the_edit_did=comparison.sentences if comparison else (),
        edits=_cut_messages(edit_result(view.tree, node, number) for number in range(len(found.edits))),
    )


@tool(reads_only=False)
def node_profile(call: Call, *, run: RunName, node: NodeNumber, ncu: bool = False) -> Profile:
    """Profile a node: what binds its kernel, from the recorded counters or the model's terms. With `ncu` it also runs
    under Nsight Compute for what its rules find: about half a minute, on a GPU only."""
    view = call.engine.view(run)
    evaluation = view.evaluation(node)
    if not evaluation.timings:
        raise RequestError(
            f"Node {node} was not timed, so nothing binds it: {evaluation.outcome}: "
            f"{_cut(evaluation.message, MESSAGE_LENGTH)}"
        )
    findings: tuple[Finding, ...] = ()
    if ncu:
        with call.engine.turn(call.watch):
            findings = profile_node(view, node, lambda _: None).findings
    found = explained(f"node {node}", evaluation)
    return Profile(
        node=node,
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
    )


def _asked(call: Call, run: str, count: int, task: AskedTask | None = None) -> Asked:
    with call.engine.session(run, call.watch) as session:
        asks = session.ask(count)
    return Asked(session.stop_reason, tuple(_asked_node(run, ask) for ask in asks), _status(call, run), task)


def _asked_node(run: str, ask: Ask) -> NodeRequest:
    evidence = ask.evidence
    log = "" if evidence.outcome is Outcome.OK else evidence.log
    return NodeRequest(
        node=ask.node,
        source=_cut(ask.source, SOURCE_LENGTH, address(run, "source", ask.node)),
        evidence=msgspec.structs.replace(
            evidence,
            explanation=_cut(evidence.explanation, LOG_LENGTH),
            message=_cut(evidence.message, MESSAGE_LENGTH),
            log=_cut(log, LOG_LENGTH, address(run, "log", ask.node)),
        ),
        lineage=_cut_messages(ask.lineage[-ATTEMPTS:]),
        siblings=_cut_messages(ask.siblings[-ATTEMPTS:]),
        elsewhere=_cut_messages(ask.elsewhere[-ATTEMPTS:]),
    )


def _status(call: Call, run: str) -> Status:
    view = call.engine.view(run)
    configuration = view.manifest.configuration
    # Of a search that went on after its final validation the answer may be slower than what was found since.
    fastest = max(view.tree.nodes or (view.best,), key=valid_speedup)
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
        best_speedup=valid_speedup(fastest),
        answer=view.answer.node if view.answer else None,
        validation=view.validation,
    )


def _listed_run(name: str, view: View) -> ListedRun:
    speedup = valid_speedup(view.best) if view.tree.nodes else 0.0
    return ListedRun(name, view.manifest.configuration.task, view.device, view.evaluations, speedup)


def _listed(view: View, node: Node) -> ListedNode:
    parent = valid_speedup(view.tree.nodes[node.parent]) if node.parent is not None else 0.0
    speedup = valid_speedup(node)
    return ListedNode(
        node.id,
        node.parent,
        edit_title(view.tree, node),
        node.outcome,
        speedup / parent if parent > 0 else 0.0,
        speedup,
        sum(not fate.reason and fate.node is None for fate in node.fates),
    )


def _cut(text: str, length: int, uri: str = "") -> str:
    """The beginning of a text, how much of it is missing, and where the whole is."""
    if len(text) <= length:
        return text
    where = f" in {uri}" if uri else ""
    return f"{text[:length]}\n[... {len(text) - length} more characters{where}]"


_Cut = TypeVar("_Cut", EditResult, AskedAttempt)


def _cut_messages(each: Iterable[_Cut]) -> tuple[_Cut, ...]:
    return tuple(msgspec.structs.replace(one, message=_cut(one.message, MESSAGE_LENGTH)) for one in each)
