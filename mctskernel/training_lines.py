"""The lines of training data: their fields, and how a context and an edit are put into words."""

from __future__ import annotations

from typing import Literal

import msgspec

from mctskernel.core.edit import Block, Category
from mctskernel.core.evaluation import Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Purpose

SCHEMA_VERSION = 1


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a line comes from: the run, the device and its programs, and what models had a part in it.

    `run` is the same for a run and its copies; `numbers` says whether times are measured or modelled; `versions` is the
    run's fingerprint: GPU, driver, compilers, packages. `unanchored` says that a model wrote the reference, and
    that nobody vouched for it: what is verified may be right about the wrong thing.
    """

    run: str
    task: str
    seed: int
    device: str
    numbers: Source
    versions: dict[str, str]
    models: tuple[str, ...]
    licence: str
    unanchored: bool = False
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
    """What whoever edits a kernel knows. `seconds` is the geometric mean over the shapes, null without a time.

    `outcome` and `message` say how its evaluation ended, `diagnosis` what binds it, the strongest cause first.
    """

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
    """The call of a model that an edit came from: `prompt` is a JSON array of messages, `reply` is as it came.

    A reply may hold other edits too.
    """

    purpose: Purpose
    model: str
    expert: str
    prompt: str
    reply: str


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An edit: SEARCH/REPLACE blocks to be applied in order, and the whole source that they make.

    `node` is the kernel that it made; `exchange` is null for edits that no model wrote.
    """

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
    """What became of an edit. `log_gain` is the mean over the shapes of log(time before / time after).

    `noise` is how far from 0 that may be by chance. Both are null unless both times are believed.
    """

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
    """Two edits of the same kernel; the chosen one is valid, and the other is not or is slower beyond the noise.

    `log_gain` is the rejected one's time over the chosen one's, and `noise` its uncertainty, as in `Result`; both are
    null where the rejected one is not valid.
    """

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
    """A step: state, action, reward with its terms, and whether the run edited the kernel that it made no further.

    The reward is that of the new kernel against the starting kernel, not the difference to the state's own, which is
    `state_reward`.
    """

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
