"""What kinds of edits did in earlier runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.task import Task

LONGEST_TITLE = 120
"""Characters of a title that are kept: models write titles, and prompts quote them."""


@dataclass(frozen=True)
class Experience:
    """What edits of one kind did to kernels of one kind, over all runs that are remembered.

    A kind of edit is a category and a title without its numbers; a kind of kernel is a language, an architecture such
    as `sm_90` and the bottleneck that weighed most. Of `tried` edits, `failed` gave no valid kernel and `improved` made
    it faster by more than the noise. `log_gain` is the mean logarithm of the gain of those that were valid.
    """

    category: str
    title: str
    bottleneck: str
    language: str
    architecture: str
    tried: int
    failed: int
    improved: int
    log_gain: float


def kind_of(title: str, names: Collection[str] = ()) -> str:
    """A title without numbers, remarks in parentheses and these names, which are a task's own.

    `BLOCK 32 -> 64` becomes `block # -> #`; with the name `softmax`, `unroll loop 2 of softmax (for (...)) by 4`
    becomes `unroll loop # of _ by #`. It is one line of at most `LONGEST_TITLE` characters.
    """
    text = _PARENTHESES.sub("", title)
    if names:
        text = re.sub(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(names)))})(?!\w)", "_", text)
    words = _NUMBER.sub("#", text).lower().split()
    return "".join(each for each in " ".join(words) if each.isprintable())[:LONGEST_TITLE]


def names_of(task: Task) -> frozenset[str]:
    """The names that are a task's own: of its buffers and of its starting kernel's functions."""
    buffers = {tensor.name for tensor in (*task.inputs, *task.outputs)}
    try:
        functions = {launch.kernel for launch in plan_of(task.starting_kernel).launches}
    except LaunchPlanError:
        functions = set()
    return frozenset((buffers | functions) - _ARTICLES)


_PARENTHESES = re.compile(r"\s\(.*\)")
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d+(?:\.\d+)?")
_ARTICLES = {"a"}
