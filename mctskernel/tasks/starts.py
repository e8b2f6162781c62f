"""Starting points beside a task's starting kernel: files `start_NAME.cu` and `start_NAME.py` of its folder.

The tree keeps one root, the starting kernel, which is what everything is compared with. Each other starting point is an
edit of it that puts the whole text in its place, tried before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Proposals
from mctskernel.core.task import TaskError
from mctskernel.tree.node import UNTRIED, Tree

PROPOSER = "start/"
"""How the name begins that a starting point's edit gives as its proposer; the rest is the starting point's own."""


def starting_points(folder: Path, language: Language) -> tuple[Edit, ...]:
    """The other starting points of a task folder in a language, by name. Raises TaskError."""
    return tuple(_edit(file, text) for file, text in starting_files(folder, language))


def starting_files(folder: Path, language: Language) -> Iterator[tuple[Path, str]]:
    """Their files and what is in them. Raises TaskError."""
    for file in sorted(folder.glob(f"start_*{language.suffix}")):
        try:
            yield file, file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{file} can't be read: {error}.") from error


def proposals_of(starts: tuple[Edit, ...]) -> Proposals:
    """The starting points as a reply; the proposer has other edits of the root."""
    return Proposals(starts, more=True)


def untried(tree: Tree) -> int | None:
    """The number, among the root's edits, of a starting point that wasn't tried yet; None when all were."""
    root = tree.nodes[0]
    for number, (edit, fate) in enumerate(zip(root.edits, root.fates, strict=True)):
        if edit.proposer.startswith(PROPOSER) and fate == UNTRIED:
            return number
    return None


def are_proposed(tree: Tree) -> bool:
    """Whether the root has its starting points as edits."""
    return any(edit.proposer.startswith(PROPOSER) for edit in tree.nodes[0].edits)


def origin(tree: Tree, node: int) -> str:
    """The starting point that a node comes from; empty for the starting kernel itself."""
    for number in tree.lineage(node):
        made = tree.nodes[number]
        if made.parent == 0 and made.edit is not None:
            proposer = tree.nodes[0].edits[made.edit].proposer
            return proposer.removeprefix(PROPOSER) if proposer.startswith(PROPOSER) else ""
    return ""


def _edit(file: Path, text: str) -> Edit:
    name = file.stem.removeprefix("start_")
    return Edit(
        Category.ALGORITHM,
        f"start from {name}",
        WholeSource(text),
        rationale=f"Another starting point of the task: {file.name}.",
        proposer=PROPOSER + name,
    )
