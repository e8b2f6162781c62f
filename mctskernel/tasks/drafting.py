"""Drafting: a task folder from words, with a reference and a task.toml that are given or that a model states.

A model's task.toml is read for what a task needs and nothing else; its reference makes the task
`unverified_reference` and runs in a sandbox only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mctskernel.core.documents import members
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Purpose
from mctskernel.core.task import Task, TaskError, shape_label
from mctskernel.core.task_file import load_task, read_text, start_files
from mctskernel.core.user_errors import NoKernelError
from mctskernel.edits.llm.model import Call, Model, clean
from mctskernel.edits.llm.prompt import DRAFT_MEND, messages_to_draft, messages_to_mend
from mctskernel.edits.llm.replies import DRAFT_SCHEMA, one_line
from mctskernel.tasks.check import MAX_REFERENCE_BYTES, reference_problems


@dataclass(frozen=True)
class Order:
    """What a user wants, in words, and where the task is to be made.

    `reference` and `task_file` are the texts of the user's reference.py and task.toml, empty where a model is to write
    them. With `has_task` the folder holds a task, with kernels or without, and words may be empty.
    """

    wanted: str
    folder: Path
    language: Language = Language.CUDA
    reference: str = ""
    task_file: str = ""
    has_task: bool = False

    @property
    def unverified_reference(self) -> bool:
        """Whether a model writes the reference."""
        return not self.reference and not self.has_task

    @property
    def kernel_file(self) -> Path:
        return self.folder / f"kernel{self.language.suffix}"

    @property
    def has_placeholder(self) -> bool:
        """Whether there is no kernel yet in its file."""
        return self.kernel_file.is_file() and read_text(self.kernel_file) == _PLACEHOLDERS[self.language]


DRAFTS = 3  # how often a model may state a task, the first time included
MAX_TASK_BYTES = 4 << 30  # of the tensors of a shape that a model chose
MAX_SHAPES = 64  # of a task that a model states
MAX_SUMMARY = 200  # characters

Say = Callable[[str], None]

_DRAFTED_KEYS = frozenset(
    {"deterministic", "flops", "independent", "inputs", "outputs", "scalars", "shapes", "tolerance"}
)

_PLACEHOLDERS = {
    Language.CUDA: '/*\n[[launch]]\nkernel = "none"\ngrid = [1]\nblock = [1]\nargs = []\n*/\n'
    '#error "There is no kernel yet."\nextern "C" __global__ void none() {}\n',
    Language.TRITON: '"""\n[[launch]]\nkernel = "none"\ngrid = [1]\nargs = []\n"""\n\n'
    "import triton\n\n\n@triton.jit\ndef none():\n    there_is_no_kernel_yet\n",
}
"""The kernel of a task that has none yet: a launch plan, and nothing that could be built."""


def draft_task(order: Order, model: Model, say: Say) -> Task:
    """Write task.toml, reference.py and a placeholder where they are missing. Raises NoKernelError and TaskError."""
    if order.has_task:
        is_named = "kernel" in members(read_text(order.folder / "task.toml"))
        if not (is_named or order.kernel_file.is_file() or start_files(order.folder, order.language)):
            order.kernel_file.write_text(_PLACEHOLDERS[order.language], "utf-8")
        return load_task(order.folder, order.language)
    order.kernel_file.write_text(_PLACEHOLDERS[order.language], "utf-8")
    if order.reference and order.task_file:
        task = _write(order, order.reference, order.task_file)
        for problem in reference_problems(task):
            raise TaskError(problem)
        return task
    asked = messages_to_draft(order.wanted, order.reference, order.task_file)
    call = Call(Purpose.GENERATE, asked, schema=DRAFT_SCHEMA, expert="task")
    problems: list[str] = []
    for _ in range(DRAFTS):
        exchange = model.complete(call)
        if not exchange.reply.strip():
            reason = exchange.problem or "The reply was empty."
            raise NoKernelError(f"The model states no task: {reason}")
        stated = _members(exchange.reply)
        reference = order.reference or stated.get("reference", "") or _in_fence(exchange.reply, "python")
        task_file = order.task_file or stated.get("task", "") or _in_fence(exchange.reply, "toml")
        problems = list(_faults(order, reference, task_file))
        if not problems:
            for name in ("task.toml", "reference.py"):
                say(f"--- {name}\n{(order.folder / name).read_text('utf-8')}")
            return load_task(order.folder, order.language)
        say(f"The task as the model states it can't be used: {problems[0]}")
        mended = messages_to_mend(asked, exchange.reply, problems, DRAFT_MEND)
        call = replace(call, purpose=Purpose.MEND, messages=mended)
    raise NoKernelError(f"The model states no task that can be used: {problems[0]}")


def _members(reply: str) -> dict[str, str]:
    """The texts of the first object of a reply that is whole."""
    start = max(reply.find("{"), 0)
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(reply, start)
    except (ValueError, RecursionError):
        return {}
    members = value.items() if isinstance(value, dict) else ()
    return {name: clean(text) for name, text in members if isinstance(text, str)}


def _in_fence(reply: str, label: str) -> str:
    found = re.search(rf"^```{label}[ \t]*\n(.*?)^```", reply, re.DOTALL | re.MULTILINE)
    return clean(found[1]) if found else ""


def _faults(order: Order, reference: str, task_file: str) -> Iterator[str]:
    """What is wrong with a task of which a model wrote a part, in sentences; it is written if it can be read."""
    if not reference.strip():
        yield "The reply has no reference."
    if not task_file.strip():
        yield "The reply has no task file."
    unknown = sorted(members(task_file).keys() - _DRAFTED_KEYS) if not order.task_file else []
    if unknown:
        known = ", ".join(sorted(_DRAFTED_KEYS))
        yield f"The task file has the key '{one_line(unknown[0], 40)}' (known: {known})."
    if unknown or not reference.strip() or not task_file.strip():
        return
    try:
        task = _write(order, reference, task_file)
        yield from list(_size_faults(task)) or reference_problems(task)
    except TaskError as error:
        yield str(error)


def _size_faults(task: Task) -> Iterator[str]:
    """A model may have chosen any shapes."""
    if len(task.shapes) > MAX_SHAPES:
        yield f"There are {len(task.shapes)} shapes; {MAX_SHAPES} are enough."
    for shape in task.search_shapes:
        if task.compulsory_bytes(shape) > MAX_TASK_BYTES:
            yield f"The tensors at {shape_label(shape)} are larger than {MAX_TASK_BYTES >> 30} GiB."
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        if task.compulsory_bytes(shape) > MAX_REFERENCE_BYTES:
            limit = MAX_REFERENCE_BYTES >> 20
            yield f"The tensors at {shape_label(shape)}, where kernels are verified, are larger than {limit} MiB."


def _write(order: Order, reference: str, task_file: str) -> Task:
    """Write the task with a name, a summary, and a warning about an unchecked reference. Raises TaskError."""
    given, lines = members(task_file), []
    if order.unverified_reference and given.get("unverified_reference", True) is not True:
        raise TaskError("task.toml says that the reference was checked, but a model is to write it.")
    if "name" not in given:
        lines.append(f'name = "{re.sub(r"[^0-9A-Za-z_]+", "_", order.folder.resolve().name)}"')
    if "summary" not in given:
        lines.append(f"summary = {json.dumps(one_line(order.wanted, MAX_SUMMARY))}")
    if order.unverified_reference and "unverified_reference" not in given:
        lines += [
            "# A language model wrote reference.py, and it was not checked: kernels may compute the wrong thing.",
            "# Once you have read it and it is what you want, delete the next line.",
            "unverified_reference = true",
        ]
    text = "\n".join([*lines, "", task_file.strip("\n"), ""]) if lines else task_file
    (order.folder / "task.toml").write_text(text, "utf-8")
    (order.folder / "reference.py").write_text(reference.rstrip("\n") + "\n", "utf-8")
    return load_task(order.folder, order.language)
