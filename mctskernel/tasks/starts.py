"""Starting points beside a task's starting kernel: files `start_NAME.cu` and `start_NAME.py` of its folder.

The tree keeps one root, the starting kernel. Each other starting point is an edit of it that puts the whole text in its
place, tried before anything else; kernels of several languages grow in one tree. The fastest of them all is what the
user started with: speed-ups are over it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from shutil import copyfile

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, TaskError
from mctskernel.core.task_file import load_task, other_starts, read_text
from mctskernel.profiling.reward import is_eligible
from mctskernel.tree.node import UNTRIED, Fate, Tree

PROPOSER = "start/"
"""How the name begins that a starting point's edit gives as its proposer; the rest is the starting point's own."""

_ABOUT = re.compile(r"/\*\n# (.+)")
"""What a comment at the top of a launch plan says of a start."""

PLAIN = "plain.cu"  # the plain kernel of a task that has a better one in its place


def starting_points(task: Task, language: Language | None = None) -> tuple[Edit, ...]:
    """The other starting points of a task by name, in one language or in all. Raises TaskError."""
    found = other_starts(task.folder, language).items()
    return tuple(_edit(file, kernel) for file, kernel in found if kernel != task.starting_kernel)


def set_plain_aside(folder: Path) -> None:
    """Begin at a problem's templates if it has some: its plain kernel is slow, and needed where no start is right."""
    plain, templates = folder / "kernel.cu", folder / "start_templates.cu"
    if plain.is_file() and templates.is_file():
        plain.rename(folder / PLAIN)
        templates.rename(plain)


def copy_other_starts(task: Task, language: Language | None, target: Path) -> bool:
    """Copy a task's folder without its starting kernel; False if it can't be searched from another start."""
    files = [file for file in task.folder.iterdir() if file.is_file()]
    start = task.starting_kernel
    own = [f for f in files if f.suffix == start.language.suffix and f.stem.startswith(("kernel", "start_"))]
    left = [file for file in files if file not in own or read_text(file) != start.source]
    is_last = not starting_points(task, language)
    if len(left) == len(files) or (is_last and task.folder / PLAIN not in left):
        return False
    target.mkdir()
    for file in left:
        copyfile(file, target / ("kernel.cu" if is_last and file.name == PLAIN else file.name))
    with suppress(TaskError):  # task.toml may name the file that was left out
        return bool(load_task(target, language))
    return False


def untried(tree: Tree) -> int | None:
    """The number, among the root's edits, of a starting point that wasn't tried yet; None when all were."""
    return next((number for number, fate in _fates(tree).items() if fate == UNTRIED), None)


def are_proposed(tree: Tree) -> bool:
    return bool(_fates(tree))


def are_evaluated(tree: Tree) -> bool:
    return all(
        fate != UNTRIED and (fate.node is None or tree.nodes[fate.node].evaluation is not None)
        for fate in _fates(tree).values()
    )


def _fates(tree: Tree) -> dict[int, Fate]:
    """The fates of starting points, by their numbers among the root's edits."""
    pairs = enumerate(zip(tree.nodes[0].edits, tree.nodes[0].fates, strict=True))
    return {number: fate for number, (edit, fate) in pairs if edit.proposer.startswith(PROPOSER)}


def origin(tree: Tree, node: int) -> str:
    """The starting point that a node comes from; empty for the starting kernel itself."""
    return next((name for each in tree.lineage(node) if (name := start_name(tree, each))), "")


def start_nodes(tree: Tree) -> list[int]:
    """The nodes of all starts, the starting kernel first; none in an empty tree."""
    return [0, *(each for each in tree.nodes[0].children if start_name(tree, each))] if tree.nodes else []


def start_name(tree: Tree, node: int) -> str:
    """The name of a node that is a starting point itself; empty for any other."""
    made = tree.nodes[node]
    if made.parent != 0 or made.edit is None:
        return ""
    proposer = tree.nodes[0].edits[made.edit].proposer
    return proposer.removeprefix(PROPOSER) if proposer.startswith(PROPOSER) else ""


def best_start(tree: Tree, refused: Container[int] = ()) -> int:
    """The node of the fastest start with a valid time that isn't among `refused`; the root where that is unknown."""
    scored = {
        each: node.score.speedup
        for each in start_nodes(tree)[1:]
        if each not in refused
        if (node := tree.nodes[each]).score and node.evaluation and is_eligible(node.evaluation)
    }
    best = max(scored, key=scored.__getitem__, default=0)
    return best if scored.get(best, 0.0) > 1 else 0


def start_speedup(tree: Tree, refused: Container[int] = ()) -> float:
    """The speed-up of the fastest start over the root, by which those of its descendants are divided."""
    score = tree.nodes[best].score if (best := best_start(tree, refused)) else None
    return score.speedup if score is not None else 1.0


def _edit(file: Path, kernel: Kernel) -> Edit:
    name, about = file.stem.removeprefix("start_"), _ABOUT.match(kernel.source)
    return Edit(
        Category.ALGORITHM,
        f"start from {name}" + (f": {about[1]}" if about else ""),
        WholeSource(kernel.source, kernel.language),
        rationale=f"Another starting point of the task: {file.name}.",
        proposer=PROPOSER + name,
    )
