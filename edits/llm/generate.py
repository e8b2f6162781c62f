"""Generation: a model writes a task's reference and task.toml, and its first kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mctskernel.core.edit import Edit
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.proposer import Dropped, Exchange, Loss, Purpose
from mctskernel.core.task import Task
from mctskernel.edits.llm.experts import Expert
from mctskernel.edits.llm.model import Call, Model, clean
from mctskernel.edits.llm.prompt import messages_to_draft, messages_to_generate, messages_to_mend_draft
from mctskernel.edits.llm.proposer import converse
from mctskernel.edits.llm.reply_format import DRAFT_SCHEMA, EDITS_SCHEMA
from mctskernel.edits.patch import PatchError, apply

PLACEHOLDERS = {
    Language.CUDA: Kernel(
        '/*\n[[launch]]\nkernel = "none"\ngrid = [1]\nblock = [1]\nargs = []\n*/\n'
        '#error "There is no kernel yet."\nextern "C" __global__ void none() {}\n'
    ),
    Language.TRITON: Kernel(
        '"""\n[[launch]]\nkernel = "none"\ngrid = [1]\nargs = []\n"""\n\n'
        "import triton\n\n\n@triton.jit\ndef none():\n    there_is_no_kernel_yet\n",
        Language.TRITON,
    ),
}
"""The kernel of a task that has none yet: a launch plan, and nothing that could be built."""


@dataclass(frozen=True)
class Statement:
    """What a task computes: the text of its reference.py, and that of its task.toml."""

    reference: str
    task_file: str


@dataclass(frozen=True)
class FirstKernel:
    """A kernel from a reply, with its edit; None if the reply has none, and `losses` say why."""

    kernel: Kernel | None
    edit: Edit | None = None
    losses: tuple[Dropped, ...] = ()

    @property
    def is_silent(self) -> bool:
        """Whether the model didn't answer."""
        return self.kernel is None and any(
            each.loss in (Loss.NO_REPLY, Loss.OVER_BUDGET) for each in self.losses
        )


def draft_call(wanted: str, reference: str, task_file: str) -> Call:
    """The call for what is empty: the reference, the task file, or both."""
    messages = messages_to_draft(wanted, reference, task_file)
    return Call(Purpose.GENERATE, messages, schema=DRAFT_SCHEMA, expert="task")


def mended_draft_call(call: Call, exchange: Exchange, problems: Sequence[str]) -> Call:
    """The call that returns a draft with what is wrong with it."""
    messages = messages_to_mend_draft(call.messages, exchange.reply, problems)
    return replace(call, purpose=Purpose.MEND, messages=messages)


def read_statement(reply: str, reference: str, task_file: str) -> Statement:
    """A reply's reference and task file, each replaced by what was given; empty where the reply has none."""
    found = _members(reply)
    return Statement(
        reference or found.get("reference", "") or _in_fence(reply, "python", "py"),
        task_file or found.get("task", "") or _in_fence(reply, "toml"),
    )


def ask_for_kernel(
    model: Model,
    task: Task,
    wanted: str,
    expert: Expert,
    *,
    attempts: Sequence[str] = (),
    device: Sequence[str] = (),
    seed: int = 0,
) -> FirstKernel:
    """A first kernel of a task, in the language of its placeholder, from one or two exchanges."""
    placeholder = task.starting_kernel
    call = Call(
        Purpose.GENERATE,
        messages_to_generate(task, wanted, expert, attempts, device),
        schema=EDITS_SCHEMA,
        expert=expert.name,
        model=expert.model,
        temperature=expert.temperature,
        seed=seed,
        subject=placeholder.identity,
    )
    reply = converse(model, call, placeholder, 1)
    for edit in reply.edits:
        try:
            return FirstKernel(apply(placeholder, edit), edit, reply.dropped)
        except PatchError as error:
            return FirstKernel(None, None, (*reply.dropped, Dropped(error.loss, str(error))))
    return FirstKernel(None, None, reply.dropped)


def _members(reply: str) -> dict[str, str]:
    """The texts of the first object of a reply that is whole."""
    start = reply.find("{")
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(reply, max(start, 0))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {str(name): clean(text) for name, text in value.items() if isinstance(text, str)}


def _in_fence(reply: str, *labels: str) -> str:
    found = re.search(rf"^```(?:{'|'.join(labels)})[ \t]*\n(.*?)^```", reply, re.DOTALL | re.MULTILINE)
    return clean(found[1]) if found else ""
