"""Training data: the steps of a run as JSON lines, to train models that propose edits.

    sft          edits that gained beyond the noise
    preference   pairs of edits of the same kernel, the better one chosen
    rl           every evaluated edit with its reward

`docs/training_data.md` describes the fields. Lines are made one by one and each kernel's evidence is read once: what a
run needs is in proportion to its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from mctskernel.core.edit import Block, Category
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Purpose
from mctskernel.core.task import shape_label
from mctskernel.edits.patch import as_patch
from mctskernel.profiling.reward import gain_of, is_eligible, log_speedup
from mctskernel.report.notes import EditKey, edit_key, exchange_by_edit
from mctskernel.run import RunError, RunFolder, read_manifest, run_identity
from mctskernel.tree.blobs import BlobStore
from mctskernel.tree.events import ExchangeRecord
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import run_seconds

SCHEMA_VERSION = 1


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line comes from: the run, the device and its programs, and what models had a part in it."""

    run: str
    task: str
    seed: int
    device: str
    numbers: Source
    versions: dict[str, str]
    models: tuple[str, ...]
    licence: str
    unverified_reference: bool = False
    schema_version: int = SCHEMA_VERSION


class TaskText(msgspec.Struct, frozen=True, kw_only=True):
    """What is computed: a sentence, the reference's source, and the shapes that are timed."""

    name: str
    summary: str
    reference: str
    shapes: tuple[str, ...]


class LineageStep(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that led to the kernel; `gain` is the time before it over the time after, 0 if unknown."""

    category: Category
    title: str
    gain: float


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a kernel is edited."""

    node: int
    task: TaskText
    language: Language
    architecture: str
    source: str
    outcome: Outcome
    message: str
    seconds: float | None
    diagnosis: tuple[str, ...]
    lineage: tuple[LineageStep, ...]


class ExchangeText(msgspec.Struct, frozen=True, kw_only=True):
    """The call of a model that an edit came from; its reply may hold other edits too."""

    purpose: Purpose
    model: str
    expert: str
    prompt: str
    reply: str


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An edit: SEARCH/REPLACE blocks to be applied in order, and the whole source that they make."""

    node: int
    category: Category
    title: str
    rationale: str
    expected_effect: str
    proposer: str
    blocks: tuple[Block, ...]
    source: str
    exchange: ExchangeText | None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an edit. `log_gain` is the mean over the shapes of log(time before / time after)."""

    outcome: Outcome
    message: str
    quarantine: str
    seconds: float | None
    speedup: float
    log_gain: float | None
    noise: float | None


class Message(msgspec.Struct, frozen=True):
    """A turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str


class SftLine(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that was verified and gained beyond the noise, in words (`prompt`, `completion`) and in parts."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    context: Context
    action: Action
    result: Result
    provenance: Provenance
    schema: Literal["mctskernel.sft"] = "mctskernel.sft"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """An edit of a pair, and what became of it."""

    action: Action
    result: Result


class PreferenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """Two edits of the same kernel; the chosen one is valid, and the other is not or is slower beyond the noise."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    context: Context
    better: Side
    worse: Side
    log_gain: float | None
    noise: float | None
    provenance: Provenance
    schema: Literal["mctskernel.preference"] = "mctskernel.preference"


class RlLine(msgspec.Struct, frozen=True, kw_only=True):
    """A step: state, action, reward with its terms, and whether the run edited the kernel that it made no further."""

    state: Context
    action: Action
    result: Result
    reward: float
    state_reward: float
    terms: dict[str, float]
    done: bool
    provenance: Provenance
    schema: Literal["mctskernel.rl"] = "mctskernel.rl"


def prompt(context: Context) -> tuple[Message, ...]:
    """A context in words, as one message."""
    task = context.task
    parts = [
        f"Make this {context.language.value} kernel faster on {context.architecture or 'the GPU'}. {task.summary}",
        f"Shapes: {'; '.join(task.shapes)}.",
        f"Reference:\n```python\n{task.reference.strip()}\n```",
        f"Kernel:\n```{context.language.value}\n{context.source.strip()}\n```",
    ]
    if context.outcome is not Outcome.OK:
        parts.append(f"It failed ({context.outcome.value}): {context.message}")
    if context.diagnosis:
        parts.append("What binds it:\n" + "\n".join(f"- {sentence}" for sentence in context.diagnosis))
    if context.lineage:
        steps = (
            f"- {step.title} ({f'{step.gain:.2f}x' if step.gain else 'unknown'})" for step in context.lineage
        )
        parts.append("Edits so far, with their gains:\n" + "\n".join(steps))
    parts.append("Answer with SEARCH/REPLACE blocks, each of whose SEARCH texts occurs exactly once.")
    return (Message("user", "\n\n".join(parts)),)


def completion(action: Action) -> tuple[Message, ...]:
    """An edit in words: category, title, rationale and its blocks."""
    heading = f"{action.category.value}: {action.title}"
    blocks = (
        f"<<<<<<< SEARCH\n{_ended(block.search)}=======\n{_ended(block.replace)}>>>>>>> REPLACE"
        for block in action.blocks
    )
    return (Message("assistant", "\n\n".join(filter(None, (heading, action.rationale, *blocks)))),)


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


LINEAGE = 8
"""The edits of a kernel's lineage that its context names, at the most: the last ones."""

LICENCE = (
    "A kernel derives from the task's starting kernel and is under its licence; what a model wrote, under the terms of "
    "the model's provider."
)

Line = SftLine | PreferenceLine | RlLine


def write_lines(folder: RunFolder, kind: str) -> Iterator[str]:
    """The lines of a run, of a kind in `FORMATS`, each a JSON object with its end.

    Raises RunError where nodes are configurations of a search-space cache; JournalError, TaskError and BlobError.
    """
    _, lines = FORMATS[kind]
    for family in _families(folder):
        for line in lines(family):
            yield msgspec.json.encode(line).decode() + "\n"


def json_schema(kind: str) -> str:
    """The JSON Schema of the lines of a kind in `FORMATS`."""
    line, _ = FORMATS[kind]
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(line))).decode() + "\n"


@dataclass(frozen=True)
class Child:
    """A kernel that was evaluated, and the edit that made it."""

    node: Node
    evaluation: Evaluation
    action: Action
    result: Result


@dataclass(frozen=True)
class Family:
    """A kernel and what was evaluated of its edits. `root` is the starting kernel's evaluation."""

    parent: Node
    context: Context
    children: tuple[Child, ...]
    root: Evaluation
    provenance: Provenance


def sft_lines(family: Family) -> Iterator[SftLine]:
    """The edits that are faster than what they edited by more than the noise."""
    for child in family.children:
        result = child.result
        if result.log_gain is not None and result.noise is not None and result.log_gain > result.noise:
            yield SftLine(
                prompt=prompt(family.context),
                completion=completion(child.action),
                context=family.context,
                action=child.action,
                result=result,
                provenance=family.provenance,
            )


def preference_lines(family: Family) -> Iterator[PreferenceLine]:
    """The fastest edit paired with every other one that it beats beyond the noise, or that has no valid time."""
    speedups = {
        child.node.id: speedup
        for child in family.children
        if is_eligible(child.evaluation)
        and (speedup := log_speedup(child.evaluation, family.root)) is not None
    }
    if not speedups:
        return
    best = max(family.children, key=lambda child: speedups.get(child.node.id, -math.inf))
    for child in family.children:
        gain = gain_of(best.evaluation, child.evaluation)
        if child is best or (is_eligible(child.evaluation) and not (gain and gain.is_certain)):
            continue
        yield PreferenceLine(
            prompt=prompt(family.context),
            chosen=completion(best.action),
            rejected=completion(child.action),
            context=family.context,
            better=Side(action=best.action, result=best.result),
            worse=Side(action=child.action, result=child.result),
            log_gain=gain.log if gain else None,
            noise=gain.noise if gain else None,
            provenance=family.provenance,
        )


def rl_lines(family: Family) -> Iterator[RlLine]:
    """Every evaluated edit."""
    for child in family.children:
        score, before = child.node.score, family.parent.score
        if score is not None and before is not None:
            yield RlLine(
                state=family.context,
                action=child.action,
                result=child.result,
                reward=score.reward,
                state_reward=before.reward,
                terms=score.terms,
                done=not child.node.children,
                provenance=family.provenance,
            )


FORMATS: Mapping[str, tuple[type[Line], Callable[[Family], Iterator[Line]]]] = {
    "sft": (SftLine, sft_lines),
    "preference": (PreferenceLine, preference_lines),
    "rl": (RlLine, rl_lines),
}
"""The type of the lines of each format, and how they are made."""


def _families(folder: RunFolder) -> Iterator[Family]:
    manifest = read_manifest(folder)
    configuration, fingerprint = manifest.configuration, manifest.fingerprint
    if configuration.language is Language.CONFIGURATION:
        raise RunError(f"{folder.path} searched recorded configurations: it has no kernels to learn from.")
    tree, exchanges = read_tree(folder.journal), exchange_by_edit(read_events(folder.journal))
    root = tree.nodes[0].evaluation if tree.nodes else None
    if root is None:
        return
    task = folder.load_task()
    text = TaskText(
        name=task.name,
        summary=task.summary,
        reference=(folder.task / "reference.py").read_text(),
        shapes=tuple(map(shape_label, task.search_shapes)),
    )
    provenance = Provenance(
        run=run_identity(folder, manifest),
        task=configuration.task,
        seed=configuration.seed,
        device=configuration.device,
        numbers=root.source,
        versions=fingerprint,
        models=tuple(sorted({exchange.model for exchange in exchanges.values()})),
        licence=LICENCE,
        unverified_reference=manifest.unverified_reference,
    )
    for parent in tree.nodes:
        if not parent.children or parent.evaluation is None:
            continue
        context = _context(folder.blobs, tree, parent, text, fingerprint.get("architecture", ""))
        children = tuple(
            Child(node, evaluation, _action(folder.blobs, node, parent, context.source, exchanges), result)
            for node in map(tree.nodes.__getitem__, parent.children)
            if (evaluation := node.evaluation) is not None
            and (result := _result(node, evaluation, parent.evaluation)) is not None
        )
        yield Family(parent, context, children, root, provenance)


def _context(blobs: BlobStore, tree: Tree, node: Node, task: TaskText, architecture: str) -> Context:
    evaluation = node.evaluation
    assert evaluation is not None  # noqa: S101 - what has children was evaluated
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    return Context(
        node=node.id,
        task=task,
        language=node.kernel.language,
        architecture=architecture,
        source=blobs.get(node.kernel.source),
        outcome=evaluation.outcome,
        message=evaluation.message,
        seconds=run_seconds(evaluation),
        diagnosis=tuple(cause.sentence for cause in causes),
        lineage=_lineage(tree, node),
    )


def _lineage(tree: Tree, node: Node) -> tuple[LineageStep, ...]:
    steps: list[LineageStep] = []
    while len(steps) < LINEAGE and node.parent is not None and node.edit is not None:
        parent = tree.nodes[node.parent]
        edit = parent.edits[node.edit]
        before, after = parent.score, node.score
        gain = after.speedup / before.speedup if before and after and before.speedup > 0 else 0.0
        steps.append(LineageStep(category=edit.category, title=edit.title, gain=gain))
        node = parent
    return tuple(reversed(steps))


def _result(node: Node, evaluation: Evaluation, before: Evaluation) -> Result | None:
    if node.edit is None or node.score is None:
        return None
    gain = gain_of(evaluation, before)
    return Result(
        outcome=evaluation.outcome,
        message=evaluation.message,
        quarantine=evaluation.quarantine,
        seconds=run_seconds(evaluation),
        speedup=node.score.speedup,
        log_gain=gain.log if gain else None,
        noise=gain.noise if gain else None,
    )


def _action(
    blobs: BlobStore, node: Node, parent: Node, before: str, exchanges: Mapping[EditKey, ExchangeRecord]
) -> Action:
    edit, after = parent.edits[node.edit or 0], blobs.get(node.kernel.source)
    call = exchanges.get(edit_key(parent.id, edit))
    return Action(
        node=node.id,
        category=edit.category,
        title=edit.title,
        rationale=edit.rationale,
        expected_effect=edit.expected_effect,
        proposer=edit.proposer,
        blocks=as_patch(before, after).blocks,
        source=after,
        exchange=_exchange_text(blobs, call) if call else None,
    )


def _exchange_text(blobs: BlobStore, call: ExchangeRecord) -> ExchangeText:
    return ExchangeText(
        purpose=call.purpose,
        model=call.model,
        expert=call.expert,
        prompt=blobs.get(call.prompt),
        reply=blobs.get(call.reply) if call.reply else "",
    )
