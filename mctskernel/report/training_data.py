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

from mctskernel.core.documents import indented_json
from mctskernel.core.edit import Block, Category
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Exchange
from mctskernel.core.task import Task, shape_label
from mctskernel.core.user_errors import RunError
from mctskernel.edits.llm.model import Message
from mctskernel.edits.patch import as_patch
from mctskernel.profiling.reward import gain_of, is_eligible, log_speedup
from mctskernel.report.notes import EditKey, exchange_by_edit
from mctskernel.run import RunFolder, read_manifest, run_identity
from mctskernel.tree.blobs import Blobs
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import lineage_attempts, run_seconds

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
    caveats: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a kernel is edited. `lineage` are the edits that led to it, with their gains."""

    node: int
    summary: str
    reference: str
    shapes: tuple[str, ...]
    language: Language
    architecture: str
    source: str
    outcome: Outcome
    message: str
    seconds: float | None
    diagnosis: tuple[str, ...]
    lineage: tuple[str, ...]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An edit: SEARCH/REPLACE blocks to be applied in order, and the whole source that they make.

    `model`, `prompt` and `reply` are the call of a model that it came from, empty without one; the reply may hold other
    edits too.
    """

    node: int
    category: Category
    title: str
    rationale: str
    expected_effect: str
    proposer: str
    blocks: tuple[Block, ...]
    source: str
    model: str = ""
    prompt: str = ""
    reply: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an edit. `log_gain` is the mean over the shapes of log(time before / time after)."""

    outcome: Outcome
    message: str
    quarantine: str
    seconds: float | None
    speedup: float
    log_gain: float | None
    noise: float | None


class SftLine(msgspec.Struct, frozen=True, kw_only=True):
    """An edit in words, which made `node` of its kernel, was verified and gained beyond the noise."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    node: int
    log_gain: float
    noise: float
    provenance: Provenance
    schema: Literal["mctskernel.sft"] = "mctskernel.sft"


class PreferenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """Two edits of the same kernel; the chosen one is valid, and the other is not or is slower beyond the noise."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_node: int
    rejected_node: int
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
    parts = [
        f"Make this {context.language.value} kernel faster on {context.architecture or 'the GPU'}. {context.summary}",
        f"Shapes: {'; '.join(context.shapes)}.",
        f"Reference:\n```python\n{context.reference.strip()}\n```",
        f"Kernel:\n```{context.language.value}\n{context.source.strip()}\n```",
    ]
    if context.outcome is not Outcome.OK:
        parts.append(f"It failed ({context.outcome.value}): {context.message}")
    if context.diagnosis:
        parts.append("What binds it:\n" + "\n".join(f"- {sentence}" for sentence in context.diagnosis))
    if context.lineage:
        parts.append("Edits so far, with their gains:\n" + "\n".join(f"- {step}" for step in context.lineage))
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


LINEAGE = 8  # the edits of a kernel's lineage that its context names, at the most: the last ones

LICENCE = (
    "A kernel derives from the task's starting kernel and is under its licence; what a model wrote, under the terms of "
    "the model's provider."
)

Line = SftLine | PreferenceLine | RlLine


def write_lines(folder: RunFolder, kind: str) -> Iterator[str]:
    """The lines of a run, of a kind in `FORMATS`, each a JSON object with its end.

    Raises RunError where nodes are configurations of a search-space cache or that can't be read, and TaskError.
    """
    _, lines = FORMATS[kind]
    for family in _families(folder):
        for line in lines(family):
            yield msgspec.json.encode(line).decode() + "\n"


def json_schema(kind: str) -> str:
    line, _ = FORMATS[kind]
    return indented_json(msgspec.json.schema(line), 2).decode()


@dataclass(frozen=True)
class Family:
    """A kernel and what was evaluated of its edits: evaluations and steps. `root` is the starting kernel's."""

    context: Context
    children: tuple[tuple[Evaluation, RlLine], ...]
    root: Evaluation


def sft_lines(family: Family) -> Iterator[SftLine]:
    """The edits that are faster than what they edited by more than the noise."""
    for _, step in family.children:
        gain, noise = step.result.log_gain, step.result.noise
        if gain is not None and noise is not None and gain > noise:
            yield SftLine(
                prompt=prompt(family.context),
                completion=completion(step.action),
                node=step.action.node,
                log_gain=gain,
                noise=noise,
                provenance=step.provenance,
            )


def preference_lines(family: Family) -> Iterator[PreferenceLine]:
    """The fastest edit paired with every other one that it beats beyond the noise, or that has no valid time."""

    def speedup(child: tuple[Evaluation, RlLine]) -> float:
        found = log_speedup(child[0], family.root) if is_eligible(child[0]) else None
        return -math.inf if found is None else found

    best, chosen = max(family.children, key=speedup)
    if speedup((best, chosen)) == -math.inf:
        return
    for evaluation, step in family.children:
        gain = gain_of(best, evaluation)
        if step is chosen or (is_eligible(evaluation) and not (gain and gain.is_certain)):
            continue
        yield PreferenceLine(
            prompt=prompt(family.context),
            chosen=completion(chosen.action),
            rejected=completion(step.action),
            chosen_node=chosen.action.node,
            rejected_node=step.action.node,
            log_gain=gain.log if gain else None,
            noise=gain.noise if gain else None,
            provenance=step.provenance,
        )


FORMATS: Mapping[str, tuple[type[Line], Callable[[Family], Iterator[Line]]]] = {
    "sft": (SftLine, sft_lines),
    "preference": (PreferenceLine, preference_lines),
    "rl": (RlLine, lambda family: (step for _, step in family.children)),
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
    provenance = Provenance(
        run=run_identity(folder, manifest),
        task=configuration.task,
        seed=configuration.seed,
        device=configuration.device,
        numbers=root.source,
        versions=fingerprint,
        models=tuple(sorted({exchange.model for exchange in exchanges.values()})),
        licence=LICENCE,
        caveats=manifest.caveats,
    )
    for parent in tree.nodes:
        if not parent.children or parent.evaluation is None or parent.score is None:
            continue
        context = _context(
            folder.blobs, tree, parent, parent.evaluation, task, fingerprint.get("architecture", "")
        )
        children = []
        for node in map(tree.nodes.__getitem__, parent.children):
            if node.evaluation is None or node.score is None or node.edit is None:
                continue
            step = RlLine(
                state=context,
                action=_action(folder.blobs, node, parent, context.source, exchanges),
                result=_result(node.evaluation, parent.evaluation, node.score.speedup),
                reward=node.score.reward,
                state_reward=parent.score.reward,
                terms=node.score.terms,
                done=not node.children,
                provenance=provenance,
            )
            children.append((node.evaluation, step))
        if children:
            yield Family(context, tuple(children), root)


def _context(  # noqa: PLR0917 - a node and what it belongs to, from the outside in
    blobs: Blobs, tree: Tree, node: Node, evaluation: Evaluation, task: Task, architecture: str
) -> Context:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    return Context(
        node=node.id,
        summary=task.summary,
        reference=task.reference_source,
        shapes=tuple(map(shape_label, task.search_shapes)),
        language=node.kernel.language,
        architecture=architecture,
        source=blobs.get(node.kernel.source),
        outcome=evaluation.outcome,
        message=evaluation.message,
        seconds=run_seconds(evaluation),
        diagnosis=tuple(cause.sentence for cause in causes),
        lineage=tuple(
            f"{each.title} ({f'{each.gain:.2f}x' if each.gain else 'unknown'})"
            for each in lineage_attempts(tree, node.id)[-LINEAGE:]
        ),
    )


def _result(evaluation: Evaluation, before: Evaluation, speedup: float) -> Result:
    gain = gain_of(evaluation, before)
    return Result(
        outcome=evaluation.outcome,
        message=evaluation.message,
        quarantine=evaluation.quarantine,
        seconds=run_seconds(evaluation),
        speedup=speedup,
        log_gain=gain.log if gain else None,
        noise=gain.noise if gain else None,
    )


def _action(
    blobs: Blobs, node: Node, parent: Node, before: str, exchanges: Mapping[EditKey, Exchange]
) -> Action:
    edit, after = parent.edits[node.edit or 0], blobs.get(node.kernel.source)
    call = exchanges.get((parent.id, edit.content))
    return Action(
        node=node.id,
        category=edit.category,
        title=edit.title,
        rationale=edit.rationale,
        expected_effect=edit.expected_effect,
        proposer=edit.proposer,
        blocks=as_patch(before, after).blocks,
        source=after,
        model=call.model if call else "",
        prompt=blobs.get(call.prompt) if call else "",
        reply=blobs.get(call.reply) if call and call.reply else "",
    )
