"""Drafting: a task folder from words, with a reference and a task.toml that are given or that a model states.

A model's task.toml is read for what a task needs and nothing else; its reference makes the task
`unverified_reference` and runs in a sandbox only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import NoKernelError
from mctskernel.edits.llm.generate import (
    PLACEHOLDERS,
    Statement,
    draft_call,
    mended_draft_call,
    read_statement,
)
from mctskernel.edits.llm.model import Model
from mctskernel.edits.llm.reply_format import one_line
from mctskernel.tasks.check import MAX_REFERENCE_BYTES, reference_problems


class GenerationError(NoKernelError, RuntimeError):
    """No correct kernel, or no usable task; the message says what was wrong."""


@dataclass(frozen=True)
class Order:
    """What a user wants, in words, and where the task is to be made.

    `reference` and `task_file` are the texts of the user's reference.py and task.toml, empty where a model is to write
    them.
    """

    wanted: str
    folder: Path
    language: Language = Language.CUDA
    reference: str = ""
    task_file: str = ""

    @property
    def unverified_reference(self) -> bool:
        """Whether a model writes the reference."""
        return not self.reference

    @property
    def kernel_file(self) -> Path:
        """Where the starting kernel is."""
        return self.folder / f"kernel{self.language.suffix}"


DRAFTS = 3
"""How often a model may state a task, the first time included."""

MAX_TASK_BYTES = 4 << 30
"""Of the tensors of a shape that a model chose."""

MAX_SHAPES = 64
"""Of a task that a model states."""

MAX_SUMMARY = 200
"""Characters."""

Say = Callable[[str], None]

_DRAFTED_KEYS = frozenset(
    {"deterministic", "flops", "independent", "inputs", "outputs", "scalars", "shapes", "tolerance"}
)


def make_folder(order: Order) -> None:
    """Make the task's folder. Raises TaskError if there is anything in it."""
    try:
        order.folder.mkdir(parents=True, exist_ok=True)
        if any(order.folder.iterdir()):
            raise TaskError(f"{order.folder} already holds something: choose another --out-task.")
    except OSError as error:
        raise TaskError(f"{order.folder} can't be made: {error.strerror or error}.") from error


def draft_task(order: Order, model: Model, say: Say) -> Task:
    """Write task.toml and reference.py, and a placeholder for the kernel, into the order's folder.

    Raises GenerationError when what a model states can't be used, and TaskError when what was given can't.
    """
    order.kernel_file.write_text(PLACEHOLDERS[order.language].source, "utf-8")
    if order.reference and order.task_file:
        task = _written(order, Statement(order.reference, order.task_file))
        problems = _problems(task)
        if problems:
            raise TaskError(problems[0])
        return task
    first = call = draft_call(order.wanted, order.reference, order.task_file)
    problems = ()
    for _ in range(DRAFTS):
        exchange = model.complete(call)
        if not exchange.reply.strip():
            reason = exchange.problem or "The reply was empty."
            raise GenerationError(f"The model states no task: {reason}")
        statement = read_statement(exchange.reply, order.reference, order.task_file)
        problems = tuple(_faults(order, statement))
        if not problems:
            task = _written(order, statement)
            for name in ("task.toml", "reference.py"):
                say(f"--- {name}\n{(order.folder / name).read_text('utf-8')}")
            return task
        say(f"The task as the model states it can't be used: {problems[0]}")
        call = mended_draft_call(first, exchange, problems)
    raise GenerationError(f"The model states no task that can be used: {problems[0]}")


def _faults(order: Order, statement: Statement) -> Iterator[str]:
    """What is wrong with a statement of which a model wrote a part, in sentences; some only once others are mended."""
    if not statement.reference.strip():
        yield "The reply has no reference."
    if not statement.task_file.strip():
        yield "The reply has no task file."
    elif not order.task_file and (unknown := _unknown_keys(statement.task_file)):
        yield f"The task file has the key '{unknown[0]}' (known: {', '.join(sorted(_DRAFTED_KEYS))})."
    elif statement.reference.strip():
        yield from _task_faults(order, statement)


def _task_faults(order: Order, statement: Statement) -> Iterator[str]:
    try:
        task = _written(order, statement)
        oversized = list(_size_faults(task))
        yield from oversized or _problems(task)
    except TaskError as error:
        yield str(error)


def _unknown_keys(text: str) -> list[str]:
    """Keys that a model may not set; none for text that is no TOML, which is refused later."""
    return [one_line(key, 40) for key in sorted(_keys(text).keys() - _DRAFTED_KEYS)]


def _size_faults(task: Task) -> Iterator[str]:
    """A model may have chosen any shapes."""
    if len(task.shapes) > MAX_SHAPES:
        yield f"There are {len(task.shapes)} shapes; {MAX_SHAPES} are enough."
    for shape in task.search_shapes:
        if _bytes_at(task, shape) > MAX_TASK_BYTES:
            yield f"The tensors at {shape_label(shape)} are larger than {MAX_TASK_BYTES >> 30} GiB."
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        if _bytes_at(task, shape) > MAX_REFERENCE_BYTES:
            limit = MAX_REFERENCE_BYTES >> 20
            yield f"The tensors at {shape_label(shape)}, where kernels are verified, are larger than {limit} MiB."


def _bytes_at(task: Task, shape: Shape) -> int:
    """The task's compulsory bytes, however absurd the shape."""
    tensors = (*task.inputs, *task.outputs)
    return sum(math.prod(tensor.extents(shape)) * DTYPE_BYTES[tensor.dtype] for tensor in tensors)


def _problems(task: Task) -> tuple[str, ...]:
    small = tuple(shape for shape in task.shapes if _bytes_at(task, shape) <= MAX_REFERENCE_BYTES)
    return tuple(reference_problems(task, small))


def _written(order: Order, statement: Statement) -> Task:
    """The task of a statement, once it is written into the order's folder. Raises TaskError."""
    reference, text = statement.reference, _headed(order, statement.task_file)
    if order.unverified_reference and _keys(text).get("unverified_reference", True) is not True:
        raise TaskError("task.toml says that the reference was checked, but a model is to write it.")
    (order.folder / "task.toml").write_text(text, "utf-8")
    (order.folder / "reference.py").write_text(
        reference if reference.endswith("\n") else f"{reference}\n", "utf-8"
    )
    return load_task(order.folder, order.language)


def _headed(order: Order, text: str) -> str:
    """A task file with a name, a summary, and the warning that the reference was not checked."""
    given, lines = _keys(text), []
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
    return "\n".join([*lines, "", text.strip("\n"), ""]) if lines else text


def _keys(text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except DocumentError:
        return {}
