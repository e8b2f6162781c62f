"""Prompts: the files of `prompts/`, filled with a task, a node and its evidence.

The first message is the same for all calls of a search, so that servers which cache the prefixes of prompts read it
once; the second is about one node. Every part is bounded, and where something was left out the prompt says so: none is
longer than PROMPT_CHARACTERS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mctskernel.core.contract_words import contract_sentences
from mctskernel.core.edit import Category
from mctskernel.core.evaluation import REPAIRABLE, Check, Evaluation, Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Attempt, ProposalRequest
from mctskernel.core.quantities import time_text
from mctskernel.core.task import Task, Tensor, shape_label
from mctskernel.edits.llm.experts import Expert, Feedback
from mctskernel.edits.llm.model import Message

PROMPT_CHARACTERS = 120_000

SOURCE_CHARACTERS = 40_000
REFERENCE_CHARACTERS = 8_000
LOG_CHARACTERS = 6_000
EXAMPLE_CHARACTERS = 8_000
REPLY_CHARACTERS = 16_000  # of a reply that is sent back because its edits don't apply
WANTED_CHARACTERS = 8_000  # of a user's description of a kernel
MOST_ATTEMPTS = 16  # the latest of the lineage and of the siblings; of edits elsewhere, the greatest gains
DRAFT_MEND = "draft_mend.md"

REFERENCE_FILE = "reference.py"
REPAIRS = 2  # edits that a model is asked for where a kernel failed
ANY_EXPERT = Expert("all")  # nobody in particular
MOST_SENTENCES = 24  # of any other list


def messages_to_propose(
    request: ProposalRequest,
    expert: Expert,
    count: int,
    device: Sequence[str],
    feedback: Feedback = Feedback.DIAGNOSIS,
    *,
    answer: str = "",
) -> tuple[Message, ...]:
    """Ask an expert for `count` edits of a kernel that works; in the format `answer`, if that isn't the usual one."""
    # Of each title the first.
    elsewhere = {attempt.title: attempt for attempt in reversed(request.elsewhere)}
    is_full = feedback is Feedback.DIAGNOSIS
    values = {
        "source": _source_text(request.kernel),
        "expert": expert.name,
        "count": count,
        "evidence": _evidence(request, feedback),
        "standing": [plain(each) for each in request.standing[:MOST_SENTENCES]],
        "lineage": _attempts(request.lineage[-MOST_ATTEMPTS:], is_full=is_full),
        "lineage_left_out": max(0, len(request.lineage) - MOST_ATTEMPTS),
        "elsewhere": _attempts([*elsewhere.values()][::-1][:MOST_ATTEMPTS], is_full=is_full),
        **_tried(request, is_full=is_full),
    }
    return _messages("propose.md", request, device, answer, values)


def messages_to_draft(wanted: str, reference: str, task_file: str) -> tuple[Message, ...]:
    """Ask for the part of a task that is missing: its reference, its task.toml, or both."""
    text = _render(
        "draft.md",
        wanted=fenced(wanted, "", WANTED_CHARACTERS),
        reference=fenced(reference, "python", REFERENCE_CHARACTERS) if reference else "",
        task_file=fenced(task_file, "toml", REFERENCE_CHARACTERS) if task_file else "",
    )
    return (Message("user", text),)


def messages_to_generate(
    task: Task, wanted: str, expert: Expert, attempts: Sequence[str], device: Sequence[str]
) -> tuple[Message, ...]:
    """Ask an expert for a task's first kernel; `attempts` are sentences about those that failed."""
    text = _render(
        "generate.md",
        wanted=fenced(wanted, "", WANTED_CHARACTERS) if wanted else "",
        expert=expert.name,
        attempts=[plain(attempt) for attempt in attempts[-MOST_ATTEMPTS:]],
    )
    return (_system_message(task, task.starting_kernel, device), Message("user", text))


def messages_to_repair(
    request: ProposalRequest, count: int, device: Sequence[str], *, answer: str = ""
) -> tuple[Message, ...]:
    """Ask for `count` edits that repair a kernel that failed."""
    evaluation = request.evaluation
    lineage = request.lineage[-MOST_ATTEMPTS:]
    log = _STATISTICS.sub("", without_folders(evaluation.log)).strip()
    values = {
        "source": _source_text(request.kernel),
        "outcome": str(evaluation.outcome),
        "message": plain(evaluation.message),
        "checks": [
            _check_text(each)
            for each in evaluation.checks
            if not each.passed and each.message != evaluation.message
        ][:MOST_SENTENCES],
        "log": fenced(log, "", LOG_CHARACTERS) if log else "",
        "lineage": _attempts(lineage),
        "broken_by": quoted(lineage[-1].title) if lineage else "",
        "last_working": next(
            (quoted(each.title) for each in lineage[::-1] if each.outcome is Outcome.OK), ""
        ),
        "count": count,
        **_tried(request),
    }
    return _messages("repair.md", request, device, answer, values)


def ask_text(
    request: ProposalRequest, count: int, device: Sequence[str], feedback: Feedback = Feedback.DIAGNOSIS
) -> str:
    """All that a writer of kernels needs to propose `count` edits of a node, in one text that says how to answer."""
    categories = ", ".join(f"`{each}`" for each in Category)
    fence = request.kernel.language.markdown
    answer = _render("answer_format.md", node=request.node, fence=fence, categories=categories)
    return "\n".join(ask_parts(request, count, device, feedback, answer))


def ask_parts(
    request: ProposalRequest, count: int, device: Sequence[str], feedback: Feedback, answer: str
) -> tuple[str, str]:
    """The two parts of such a text: what is the same for all nodes, and the node with how to answer."""
    if request.evaluation.outcome in REPAIRABLE:
        messages = messages_to_repair(request, min(count, REPAIRS), device, answer=answer)
    else:
        messages = messages_to_propose(request, ANY_EXPERT, count, device, feedback, answer=answer)
    system, user = (message.content for message in messages)
    return system, user


def messages_to_mend(
    asked: Sequence[Message], reply: str, problems: Sequence[str], template: str = "mend.md"
) -> tuple[Message, ...]:
    """Return a reply with what is wrong with it, in at least one sentence; a draft by DRAFT_MEND."""
    text = _render(template, problems=[plain(problem) for problem in problems[:MOST_SENTENCES]])
    return (*asked, Message("assistant", cut(reply, REPLY_CHARACTERS)), Message("user", text))


def language_rules(language: Language) -> str:
    """How a kernel of a language is written, with its launch plan."""
    return _ENVIRONMENT.get_template(f"languages/{language}.md").render().strip() + "\n"


def _messages(
    template: str, request: ProposalRequest, device: Sequence[str], answer: str, values: Mapping[str, Any]
) -> tuple[Message, Message]:
    """The first message and a request; in another format of the answer than the usual one it says so at its end."""
    system = _system_message(request.task, request.kernel, device, has_format=not answer)
    node = request.node if answer else None
    return system, Message("user", _render(template, answer_format=answer.strip(), node=node, **values))


def _tried(request: ProposalRequest, *, is_full: bool = True) -> dict[str, Any]:
    """What was tried on the request's kernel and on those that led to it."""
    return {
        "siblings": _attempts(request.siblings[-MOST_ATTEMPTS:], is_full=is_full),
        "siblings_left_out": max(0, len(request.siblings) - MOST_ATTEMPTS),
        "beside": _attempts(request.beside[-MOST_ATTEMPTS:], is_full=is_full),
        "lost": [plain(reason) for reason in request.lost[:MOST_ATTEMPTS]],
    }


def _system_message(task: Task, kernel: Kernel, device: Sequence[str], *, has_format: bool = True) -> Message:
    operators = _OPERATORS.findall(task.starting_kernel.source)
    reply_format = _ENVIRONMENT.get_template("reply_format.md").render() if has_format else ""
    has_fp32 = any(tensor.dtype == "float32" for tensor in task.inputs)
    text = _render(
        "system.md",
        task=task,
        title=plain(task.name),
        summary=plain(task.summary),
        language=str(kernel.language),
        blocks=_building_blocks(task, kernel),
        reply_format=reply_format,
        device=[plain(sentence) for sentence in device[:MOST_SENTENCES]],
        reference=fenced(reference_text(task), "python", REFERENCE_CHARACTERS),
        operators=plain(", then ".join(operators)),
        products=has_fp32 and any(map(_PRODUCT.search, operators)),
        tensors=[
            f"{kind} {_tensor_text(tensor, task)}"
            for kind, tensors in (("input", task.inputs), ("output", task.outputs))
            for tensor in tensors[:MOST_SENTENCES]
        ],
        scalars=[f"{name} = {value}" for name, value in task.scalars.items()][:MOST_SENTENCES],
        search_shapes=[shape_label(shape) for shape in task.search_shapes[:MOST_SENTENCES]],
        verify_shapes=[shape_label(shape) for shape in task.verify_shapes[:MOST_SENTENCES]],
        contract=[plain(sentence) for sentence in contract_sentences(task)[:MOST_SENTENCES]],
    )
    return Message("system", text)


def reference_text(task: Task) -> str:
    """What defines the result in Python: the problem's own files where reference.py only calls them."""
    is_kernel = ("kernel", "start_")
    files = sorted(each for each in task.folder.glob("*.py") if not each.name.startswith(is_kernel))
    own = [each for each in files if each.name != REFERENCE_FILE] or files
    texts = [each.read_text("utf-8", "replace").strip() for each in own]
    return "\n\n".join(texts) or f"# {plain(task.summary)}"


def _building_blocks(task: Task, kernel: Kernel) -> dict[str, Any]:
    """Our own headers that a start of the task includes, and that start unless the kernel includes them too."""
    if kernel.language is not Language.CUDA:
        return {}
    starts = [task.starting_kernel.source]
    starts += [each.read_text("utf-8", "replace") for each in sorted(task.folder.glob("start_*.cu"))]
    example = next((each for each in starts if _OWN_HEADER.search(each)), "")
    if not example:
        return {}
    headers = list(dict.fromkeys(_OWN_HEADER.findall(example)))
    is_shown = bool(_OWN_HEADER.search(kernel.source))
    return {"headers": headers, "example": "" if is_shown else fenced(example, "cuda", EXAMPLE_CHARACTERS)}


_OWN_HEADER = re.compile(r"^#include <((?:attention|blocks|convolutions|recurrent|rows)\.cuh)>", re.M)

_OPERATORS = re.compile(r"^// (aten\.\w+(?:, aten\.\w+)*)$", re.M)
"""How plain kernels name the operators that they compute; not those that merge parts of sums."""

_STATISTICS = re.compile(r"^ptxas (?:info| +\.).*\n?", re.M)  # what ptxas says of kernels that it compiled

_PRODUCT = re.compile(r"aten\.(?:\w*mm\b|dot|mv|convolution)")


def _source_text(kernel: Kernel) -> str:
    return fenced(kernel.source, kernel.language.markdown, SOURCE_CHARACTERS)


def _attempts(attempts: Iterable[Attempt], *, is_full: bool = True) -> list[str]:
    """Attempts in words; without what they did to the counters unless `is_full`."""
    return [attempt_text(attempt if is_full else replace(attempt, effect="")) for attempt in attempts]


def _render(name: str, **values: object) -> str:
    return f"{_ENVIRONMENT.get_template(name).render(**values).rstrip()}\n"


# The values are text between fences and quotation marks, not HTML.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    loader=jinja2.PackageLoader("mctskernel.edits", "prompts"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)


TITLE_CHARACTERS = 160
EFFECT_CHARACTERS = 600
MESSAGE_CHARACTERS = 240  # of why an edit failed, in a list of many
SENTENCE_CHARACTERS = 500
MOST_CAUSES = 4
MOST_TIMINGS = 24
MOST_COUNTERS = 64
LEAST_CHANGE = 1.02  # gains and losses below this factor are called no difference


def fenced(text: str, language: str, limit: int) -> str:
    """A text in a fence of more backticks than the text has in a row, cut in its middle to `limit` characters."""
    text = cut(text.replace("\r\n", "\n"), limit).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def cut(text: str, limit: int) -> str:
    """A text of at most `limit` characters and a line that says how many were left out of its middle."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    left_out = len(text) - limit
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[len(text) - limit + head :]}"


def plain(text: str, limit: int = SENTENCE_CHARACTERS) -> str:
    """A text on one line, without folders, control characters or fences."""
    words = " ".join(without_folders(text[: 4 * limit]).split())
    printable = "".join(character for character in words if character.isprintable())
    short = printable if max(len(printable), len(text) // 4) <= limit else f"{printable[:limit]} [cut]"
    return re.sub(r"`{3,}", "``", short)


def quoted(text: str) -> str:
    return '"' + plain(text, TITLE_CHARACTERS).replace('"', "'") + '"'


def without_folders(text: str) -> str:
    """A text whose absolute paths are their last parts alone."""
    return _PATH.sub(lambda path: path[0].rsplit("/", 1)[1], text)


_PATH = re.compile(r"(?<![\w.])(?:/[\w.+@~-]+){2,}")


def attempt_text(attempt: Attempt) -> str:
    place = f"node {attempt.node}" if attempt.node is not None else ""
    category = ", ".join(filter(None, (attempt.category, place)))
    category = f" ({category})" if category else ""
    if attempt.outcome is Outcome.OK:
        result = " ".join(filter(None, (_gain_text(attempt.gain), plain(attempt.effect, EFFECT_CHARACTERS))))
    else:
        result = f"{attempt.outcome}. {plain(attempt.message, MESSAGE_CHARACTERS)}".strip()
    return f"{quoted(attempt.title)}{category}: {result}"


def _gain_text(gain: float) -> str:
    if gain <= 0:
        return "it worked; its gain is unknown."
    if gain >= LEAST_CHANGE:
        return f"{gain:.3g} times as fast."
    if gain <= 1 / LEAST_CHANGE:
        return f"took {1 / gain:.3g} times as long."
    return "made no difference."


def _tensor_text(tensor: Tensor, task: Task) -> str:
    """A tensor with its extents at the first shape that is timed, and an input with its distribution."""
    text = f"{tensor.name}: {tensor.dtype} [{', '.join(map(str, tensor.shape))}]"
    if task.search_shapes:
        shape = task.search_shapes[0]
        extents = " x ".join(map(str, tensor.extents(shape)))
        text += f", timed at {extents} ({tensor.nbytes(shape) / 1e6:,.4g} MB)"
    if tensor not in task.inputs or task.make_inputs is not None:
        return text
    limits = "" if tensor.distribution == "normal" else f" from {tensor.low} to {tensor.high}"
    return f"{text}, {tensor.distribution}{limits}"


def _speedup_text(speedup: float, best: float) -> str:
    """How a kernel stands between the fastest start and the fastest kernel."""
    own = f"That is {speedup:.3g} times as fast as the fastest start."
    if 1 / LEAST_CHANGE < speedup < LEAST_CHANGE:
        own = "That is as fast as the fastest start."
    if best <= speedup * LEAST_CHANGE:
        return own
    return f"{own} The fastest kernel of the search is {best:.3g} times as fast as that start."


def _evidence(request: ProposalRequest, feedback: Feedback) -> list[str]:
    """The performance of the request's kernel, in sentences."""
    evaluation, sentences = request.evaluation, []
    for timing in evaluation.timings[:MOST_TIMINGS]:
        where = f" at {timing.shape}" if timing.shape else ""
        sentences.append(f"It takes {time_text(timing.seconds, 3)}{where} ({evaluation.source}).")
    if evaluation.ok:
        sentences.append(_speedup_text(request.speedup, request.best_speedup))
    else:
        sentences.append(f"It has no time. {plain(f'{evaluation.outcome}: {evaluation.message}')}")
    if feedback is Feedback.COUNTERS:
        counters = sorted(evaluation.counters.items())[:MOST_COUNTERS]
        sentences += [f"{plain(name, TITLE_CHARACTERS)} = {value:.4g}" for name, value in counters]
    elif feedback is Feedback.DIAGNOSIS:
        sentences += _diagnosis(evaluation)
    flags = evaluation.flags[:MOST_CAUSES] if feedback is not Feedback.NONE else ()
    return sentences + [plain(flag) for flag in flags]


def _diagnosis(evaluation: Evaluation) -> list[str]:
    """What limits a kernel, how much of its time that explains, and what the compiler reports."""
    found = []
    if evaluation.diagnosis is not None:
        found = [plain(evaluation.diagnosis.explanation)] if evaluation.diagnosis.explanation else []
        found += [
            f"{plain(cause.sentence)} This explains {cause.share:.0%} of the time."
            for cause in evaluation.diagnosis.causes[:MOST_CAUSES]
        ]
    for each in evaluation.resources[:MOST_CAUSES]:
        spilled = each.spill_store_bytes + each.spill_load_bytes
        spills = f", and {spilled} bytes of spills" if spilled else ", no spills"
        shared = f"{each.shared_bytes} bytes of shared memory per block"
        found.append(f"{plain(each.kernel)} uses {each.registers} registers per thread and {shared}{spills}.")
    return found


def _check_text(check: Check) -> str:
    where = f"At {check.shape}: " if check.shape else ""
    return f"{where}{plain(check.message) or 'wrong.'}"
