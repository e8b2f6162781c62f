"""Prompts: the files of `prompts/`, filled with a task, a node and its evidence.

A prompt has two messages. The first is the same for all calls of a search, so that servers which keep the prefixes of
prompts read it once; the second is about one node. Both begin with the names and versions of the files that they were
made of. What varies is bounded, and where something was left out the prompt says so: none is longer than
PROMPT_CHARACTERS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Attempt, ProposalRequest
from mctskernel.core.task import Task, shape_label
from mctskernel.edits.llm.experts import Expert
from mctskernel.edits.llm.feedback import Feedback, evidence
from mctskernel.edits.llm.model import Message
from mctskernel.edits.llm.wording import (
    attempt_text,
    check_text,
    cut,
    experience_text,
    failed_checks,
    fenced,
    plain,
    quoted,
    tensor_text,
    without_folders,
)

PROMPT_CHARACTERS = 120_000

SOURCE_CHARACTERS = 40_000
REFERENCE_CHARACTERS = 8_000
LOG_CHARACTERS = 6_000
REPLY_CHARACTERS = 16_000
"""Of a reply that is sent back because its edits don't fit."""

WANTED_CHARACTERS = 8_000
"""Of what a user asks for in words."""

JUDGED_CHARACTERS = 6_000
"""Of each edit that a judge reads."""

MOST_ATTEMPTS = 16
"""Of the lineage and of the siblings, the latest; of edits elsewhere, the greatest gains."""

MOST_SENTENCES = 24
"""Of any other list."""


def messages_to_propose(
    request: ProposalRequest,
    expert: Expert,
    count: int,
    device: Sequence[str],
    feedback: Feedback = Feedback.DIAGNOSIS,
) -> tuple[Message, ...]:
    """Ask an expert for `count` edits of a kernel that works."""
    text = _render(
        "propose.md",
        (f"experts/{expert.name}.md",),
        source=_source_text(request.kernel),
        expert=expert.name,
        count=count,
        evidence=evidence(request, feedback),
        lineage=_attempts(request.lineage[-MOST_ATTEMPTS:]),
        lineage_left_out=max(0, len(request.lineage) - MOST_ATTEMPTS),
        siblings=_attempts(request.siblings[-MOST_ATTEMPTS:]),
        siblings_left_out=max(0, len(request.siblings) - MOST_ATTEMPTS),
        elsewhere=_attempts(_with_different_titles(request.elsewhere)[:MOST_ATTEMPTS]),
        experiences=[experience_text(each) for each in request.experiences[:MOST_ATTEMPTS]],
    )
    return (_system_message(request.task, request.kernel.language, device), Message("user", text))


@dataclass(frozen=True)
class Judged:
    """An edit as a judge sees it; `diff` is what it changes."""

    title: str
    category: str
    rationale: str
    diff: str


def messages_to_judge(
    request: ProposalRequest, edits: Sequence[Judged], feedback: Feedback = Feedback.DIAGNOSIS
) -> tuple[Message, ...]:
    """Ask what the edits of a kernel that works are worth, by their place in the list."""
    text = _render(
        "judge.md",
        (),
        source=_source_text(request.kernel),
        evidence=evidence(request, feedback),
        siblings=_attempts(request.siblings[-MOST_ATTEMPTS:]),
        edits=[
            {
                "title": plain(edit.title),
                "category": edit.category,
                "rationale": plain(edit.rationale),
                "diff": fenced(edit.diff, "diff", JUDGED_CHARACTERS),
            }
            for edit in edits
        ],
    )
    return (Message("user", text),)


def messages_to_draft(
    wanted: str, reference: str, task_file: str, language: Sequence[str]
) -> tuple[Message, ...]:
    """Ask for what is missing of a task: its reference, its task.toml, or both.

    `language` says in sentences what a reference may be written in.
    """
    text = _render(
        "draft.md",
        (),
        wanted=fenced(wanted, "", WANTED_CHARACTERS),
        reference=fenced(reference, "python", REFERENCE_CHARACTERS) if reference else "",
        task_file=fenced(task_file, "toml", REFERENCE_CHARACTERS) if task_file else "",
        language=language,
    )
    return (Message("user", text),)


def messages_to_mend_draft(
    asked: Sequence[Message], reply: str, problems: Sequence[str]
) -> tuple[Message, ...]:
    """Send a draft of a task back with what is wrong with it."""
    text = _render("draft_mend.md", (), problems=[plain(problem) for problem in problems[:MOST_SENTENCES]])
    return (*asked, Message("assistant", cut(reply, REPLY_CHARACTERS)), Message("user", text))


def messages_to_generate(
    task: Task, wanted: str, expert: Expert, attempts: Sequence[str], device: Sequence[str]
) -> tuple[Message, ...]:
    """Ask an expert for a task's first kernel; `attempts` are sentences about those that came to nothing."""
    text = _render(
        "generate.md",
        (f"experts/{expert.name}.md",),
        wanted=fenced(wanted, "", WANTED_CHARACTERS),
        expert=expert.name,
        attempts=[plain(attempt) for attempt in attempts[-MOST_ATTEMPTS:]],
    )
    return (_system_message(task, task.starting_kernel.language, device), Message("user", text))


def messages_to_repair(request: ProposalRequest, count: int, device: Sequence[str]) -> tuple[Message, ...]:
    """Ask for `count` edits that mend a kernel that failed."""
    evaluation = request.evaluation
    lineage = request.lineage[-MOST_ATTEMPTS:]
    text = _render(
        "repair.md",
        (),
        source=_source_text(request.kernel),
        outcome=str(evaluation.outcome),
        message=plain(evaluation.message),
        checks=[check_text(check) for check in failed_checks(evaluation)[:MOST_SENTENCES]],
        log=fenced(without_folders(evaluation.log), "", LOG_CHARACTERS) if evaluation.log.strip() else "",
        lineage=_attempts(lineage),
        broken_by=quoted(lineage[-1].title) if lineage else "",
        last_working=next((quoted(each.title) for each in lineage[::-1] if each.outcome is Outcome.OK), ""),
        siblings=_attempts(request.siblings[-MOST_ATTEMPTS:]),
        count=count,
    )
    return (_system_message(request.task, request.kernel.language, device), Message("user", text))


def messages_to_mend(asked: Sequence[Message], reply: str, problems: Sequence[str]) -> tuple[Message, ...]:
    """Send a reply back with what is wrong with it, in sentences of which there is at least one."""
    text = _render("mend.md", (), problems=[plain(problem) for problem in problems[:MOST_SENTENCES]])
    return (*asked, Message("assistant", cut(reply, REPLY_CHARACTERS)), Message("user", text))


def language_rules(language: Language) -> str:
    """How a kernel of a language is written, with its launch plan, as every proposer is told."""
    return _ENVIRONMENT.get_template(f"languages/{language}.md").render().strip() + "\n"


def version_of(name: str) -> int:
    """The version of a file of `prompts/`, which its first line says."""
    match = re.match(r"\{# version (\d+) #\}\n", _text_of(name))
    if match is None:
        raise ValueError(f"The prompt {name} doesn't begin with its version.")
    return int(match[1])


def _system_message(task: Task, language: Language, device: Sequence[str]) -> Message:
    text = _render(
        "system.md",
        (f"languages/{language}.md", "reply_format.md"),
        task=task,
        title=plain(task.name),
        summary=plain(task.summary),
        language=str(language),
        reply_format=_ENVIRONMENT.get_template("reply_format.md").render(),
        device=[plain(sentence) for sentence in device[:MOST_SENTENCES]],
        reference=fenced(_reference(task), "python", REFERENCE_CHARACTERS),
        inputs=[tensor_text(tensor) for tensor in task.inputs[:MOST_SENTENCES]],
        outputs=[tensor_text(tensor) for tensor in task.outputs[:MOST_SENTENCES]],
        scalars=[f"{name} = {value}" for name, value in task.scalars.items()][:MOST_SENTENCES],
        search_shapes=[shape_label(shape) for shape in task.search_shapes[:MOST_SENTENCES]],
        verify_shapes=[shape_label(shape) for shape in task.verify_shapes[:MOST_SENTENCES]],
        contract=[plain(sentence) for sentence in contract_sentences(task)[:MOST_SENTENCES]],
    )
    return Message("system", text)


def _reference(task: Task) -> str:
    try:
        return (task.folder / "reference.py").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return f"# {plain(task.summary)}"


def _source_text(kernel: Kernel) -> str:
    return fenced(kernel.source, _FENCE_NAMES[kernel.language], SOURCE_CHARACTERS)


_FENCE_NAMES = {Language.CUDA: "cuda", Language.TRITON: "python", Language.CONFIGURATION: "toml"}


def _attempts(attempts: Iterable[Attempt]) -> list[str]:
    return [attempt_text(attempt) for attempt in attempts]


def _with_different_titles(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The first attempt of each title."""
    first: dict[str, Attempt] = {}
    for attempt in attempts:
        first.setdefault(attempt.title, attempt)
    return list(first.values())


def _render(name: str, parts: Sequence[str], **values: object) -> str:
    """A prompt of a file and of the parts that it holds, below a line with their versions."""
    used = ", ".join(f"{part.removesuffix('.md')} {version_of(part)}" for part in (name, *parts))
    return f"[prompt: {used}]\n\n{_ENVIRONMENT.get_template(name).render(**values).rstrip()}\n"


def _text_of(name: str) -> str:
    return _LOADER.get_source(_ENVIRONMENT, name)[0]


_LOADER = jinja2.PackageLoader("mctskernel.edits", "prompts")
# What is filled in is text between fences and quotation marks, not HTML.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    loader=_LOADER, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
)
