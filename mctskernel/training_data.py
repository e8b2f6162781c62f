"""Training data: the steps of a run as JSON lines, to train models that propose edits.

    sft          edits that gained beyond the noise
    preference   pairs of edits of the same kernel, the better one chosen
    rl           every evaluated edit with its reward

`docs/training_data.md` describes the fields. Lines are made one by one and each kernel's evidence is read once: what a
run needs is in proportion to its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Language
from mctskernel.core.task import shape_label
from mctskernel.edits.blocks import blocks_between
from mctskernel.profiling.gains import gain_of
from mctskernel.profiling.reward import is_eligible, log_speedup
from mctskernel.provenance import run_identity
from mctskernel.run import RunError, RunFolder, read_manifest
from mctskernel.training_lines import (
    Action,
    Context,
    ExchangeText,
    LineageStep,
    PreferenceLine,
    Provenance,
    Result,
    RlLine,
    SftLine,
    Side,
    TaskText,
    completion,
    prompt,
)
from mctskernel.tree.events import EditRecord, ExchangeRecord, Proposed
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import run_seconds

LINEAGE = 8
"""The edits of a kernel's lineage that its context names, at the most: the last ones."""

LICENCE = (
    "A kernel derives from the task's starting kernel and is under its licence; what a model wrote, under the terms of "
    "whoever offers it."
)

Line = SftLine | PreferenceLine | RlLine


def write_lines(folder: RunFolder, kind: str) -> Iterator[str]:
    """The lines of a run, of a kind in `FORMATS`, each a JSON object with its end.

    Raises RunError where nodes are recorded configurations, which nobody wrote; JournalError, TaskError and BlobError.
    """
    lines = FORMATS[kind].lines
    for family in _families(folder):
        for line in lines(family):
            yield msgspec.json.encode(line).decode() + "\n"


def json_schema(kind: str) -> str:
    """The JSON Schema of the lines of a kind in `FORMATS`."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(FORMATS[kind].line))).decode() + "\n"


@dataclass(frozen=True)
class Child:
    """A kernel that was evaluated, and the edit that made it. `log_speedup` is over the starting kernel."""

    node: Node
    evaluation: Evaluation
    action: Action
    result: Result
    log_speedup: float | None

    @property
    def is_valid(self) -> bool:
        """Whether it has a time that is believed."""
        return is_eligible(self.evaluation)


@dataclass(frozen=True)
class Family:
    """A kernel and what was evaluated of its edits."""

    parent: Node
    context: Context
    children: tuple[Child, ...]
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
    """The fastest edit paired with every other one that it beats beyond the noise, or that has no believed time."""
    valid = [child for child in family.children if child.log_speedup is not None]
    if not valid:
        return
    best = max(valid, key=lambda child: child.log_speedup or 0.0)
    for child in family.children:
        gain = gain_of(best.evaluation, child.evaluation)
        if child is best or (child.is_valid and not (gain and gain.is_certain)):
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


@dataclass(frozen=True)
class Format:
    """A format: the type of its lines, and how they are made."""

    line: type[Line]
    lines: Callable[[Family], Iterator[Line]]


FORMATS: Mapping[str, Format] = {
    "sft": Format(SftLine, sft_lines),
    "preference": Format(PreferenceLine, preference_lines),
    "rl": Format(RlLine, rl_lines),
}


def _families(folder: RunFolder) -> Iterator[Family]:
    manifest = read_manifest(folder)
    configuration, fingerprint = manifest.configuration, manifest.fingerprint
    if configuration.language is Language.CONFIGURATION:
        raise RunError(f"{folder.path} searched recorded configurations: nobody wrote kernels to learn from.")
    tree, exchanges = read_tree(folder.journal), _exchanges(folder)
    root = tree.nodes[0].evaluation if tree.nodes else None
    if root is None:
        return
    provenance = Provenance(
        run=run_identity(folder, manifest),
        task=configuration.task,
        seed=configuration.seed,
        device=configuration.device,
        numbers=root.source,
        versions=fingerprint,
        models=tuple(sorted({exchange.model for exchange in exchanges.values()})),
        licence=LICENCE,
        unanchored=manifest.unanchored,
    )
    reader = _Reader(folder, tree, exchanges, _task_text(folder), fingerprint.get("architecture", ""))
    for parent in tree.nodes:
        children = tree.children_of(parent.id)
        if children and parent.evaluation is not None:
            yield reader.family(parent, children, root, provenance)


_EditKey = tuple[int, str]


def _exchanges(folder: RunFolder) -> dict[_EditKey, ExchangeRecord]:
    """The exchange that each edit came from, by node and change. A change that was offered again is its first one."""
    found: dict[_EditKey, ExchangeRecord] = {}
    for event in read_events(folder.journal):
        if isinstance(event, Proposed):
            for edit in event.edits:
                if edit.exchange is not None and 0 <= edit.exchange < len(event.exchanges):
                    found.setdefault((event.node, edit.change), event.exchanges[edit.exchange])
    return found


def _task_text(folder: RunFolder) -> TaskText:
    task = folder.load_task()
    return TaskText(
        name=task.name,
        summary=task.summary,
        reference=(folder.task / "reference.py").read_text(),
        shapes=tuple(map(shape_label, task.search_shapes)),
    )


@dataclass(frozen=True)
class _Reader:
    folder: RunFolder
    tree: Tree
    exchanges: Mapping[_EditKey, ExchangeRecord]
    task: TaskText
    architecture: str

    def family(self, parent: Node, children: list[int], root: Evaluation, provenance: Provenance) -> Family:
        before = parent.evaluation
        assert before is not None  # noqa: S101 - what has children was evaluated
        context = self._context(parent, before)
        made = (self._child(number, parent, before, context.source, root) for number in children)
        return Family(parent, context, tuple(child for child in made if child), provenance)

    def _context(self, node: Node, evaluation: Evaluation) -> Context:
        kernel = node.kernel
        causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
        return Context(
            node=node.id,
            task=self.task,
            language=kernel.language,
            architecture=self.architecture,
            source=self.folder.blobs.get(kernel.source),
            outcome=evaluation.outcome,
            message=evaluation.message,
            seconds=run_seconds(evaluation),
            diagnosis=tuple(cause.sentence for cause in causes),
            lineage=tuple(reversed(list(self._lineage(node)))),
        )

    def _lineage(self, node: Node) -> Iterator[LineageStep]:
        for _ in range(LINEAGE):
            if node.parent is None or node.edit is None:
                return
            parent = self.tree.nodes[node.parent]
            edit = parent.edits[node.edit]
            before, after = parent.score, node.score
            gain = after.speedup / before.speedup if before and after and before.speedup > 0 else 0.0
            yield LineageStep(category=edit.category, title=edit.title, gain=gain)
            node = parent

    def _child(
        self, number: int, parent: Node, before: Evaluation, source: str, root: Evaluation
    ) -> Child | None:
        node = self.tree.nodes[number]
        evaluation = node.evaluation
        if evaluation is None or node.edit is None or node.score is None:
            return None
        edit = parent.edits[node.edit]
        gain = gain_of(evaluation, before)
        result = Result(
            outcome=evaluation.outcome,
            message=evaluation.message,
            quarantine=evaluation.quarantine,
            seconds=run_seconds(evaluation),
            speedup=node.score.speedup,
            log_gain=gain.log if gain else None,
            noise=gain.noise if gain else None,
        )
        speedup = log_speedup(evaluation, root) if is_eligible(evaluation) else None
        return Child(node, evaluation, self._action(node, parent, edit, source), result, speedup)

    def _action(self, node: Node, parent: Node, edit: EditRecord, before: str) -> Action:
        after = self.folder.blobs.get(node.kernel.source)
        return Action(
            node=node.id,
            category=edit.category,
            title=edit.title,
            rationale=edit.rationale,
            expected_effect=edit.expected_effect,
            proposer=edit.proposer,
            blocks=blocks_between(before, after),
            source=after,
            exchange=self._exchange(parent.id, edit),
        )

    def _exchange(self, node: int, edit: EditRecord) -> ExchangeText | None:
        found = self.exchanges.get((node, edit.change))
        if found is None:
            return None
        blobs = self.folder.blobs
        return ExchangeText(
            purpose=found.purpose,
            model=found.model,
            expert=found.expert,
            prompt=blobs.get(found.prompt),
            reply=blobs.get(found.reply) if found.reply else "",
        )
