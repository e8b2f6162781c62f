"""Edits applied to kernels, and differences between texts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from mctskernel.core.edit import Block, Edit, Patch, Settings, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Loss
from mctskernel.core.space import SpaceError, with_settings
from mctskernel.edits.places import Match, Nowhere, Place, Several, find_place, occurrences


class PatchError(ValueError):
    """A change that can't be applied. The message says which block and why, in words for who wrote it."""

    def __init__(self, message: str, loss: Loss) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(frozen=True)
class Applied:
    """A kernel after an edit, and how each block of its patch matched (none for other changes)."""

    kernel: Kernel
    matches: tuple[Match, ...] = ()

    @property
    def loosest(self) -> Match:
        """The match of the block that matched least closely; exact where there are no blocks."""
        return max(self.matches, key=list(Match).index, default=Match.EXACT)


def apply(kernel: Kernel, edit: Edit) -> Kernel:
    """The kernel after an edit. Raises PatchError when it can't be applied or changes nothing.

    Line ends become those of the kernel. Each SEARCH text must fit in exactly one place (`find_place`).
    """
    return applied(kernel, edit).kernel


def applied(kernel: Kernel, edit: Edit) -> Applied:
    """The same, with how closely each block matched."""
    before = kernel.source.replace("\r\n", "\n")
    matches: tuple[Match, ...] = ()
    match edit.change:
        case WholeSource(source):
            after = source.replace("\r\n", "\n")
        case Patch(blocks):
            after, matches = _apply_blocks(before, blocks)
        case Settings():
            after = _with_settings(kernel, edit)
    if not after.strip():
        raise PatchError("The edit leaves an empty source.", Loss.EMPTY)
    if "\r\n" in kernel.source:
        after = after.replace("\n", "\r\n")
    result = replace(kernel, source=after)
    if result.identity == kernel.identity:
        raise PatchError("The edit changes nothing but comments or spacing.", Loss.NO_CHANGE)
    return Applied(result, matches)


def _with_settings(kernel: Kernel, edit: Edit) -> str:
    try:
        return with_settings(kernel, {factor.name: factor.level for factor in edit.factors}).source
    except SpaceError as error:
        raise PatchError(f"The edit can't be applied: {error}", Loss.NO_MATCH) from error


def unified_diff(before: str, after: str, *, context: int = 3) -> str:
    """A unified diff without file names, empty when the texts are equal."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = list(difflib.unified_diff(old, new, n=context))[2:]
    torn = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + torn for line in lines)


def as_patch(before: str, after: str) -> Patch:
    """SEARCH/REPLACE blocks that turn one text into another, each with lines enough to be unique.

    `before` must not be blank.
    """
    old, new = _split(before), _split(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changes = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    current, blocks, drift = old, [], 0
    for _, start, end, new_start, new_end in changes:
        replacement = new[new_start:new_end]
        block, current = _block(current, start + drift, end + drift, replacement)
        drift += len(replacement) - (end - start)
        blocks.append(block)
    if any(not block.search.strip() for block in blocks):
        # What earlier blocks leave may be blank, and a blank text can't be searched for.
        return Patch((Block(before, after),))
    return Patch(tuple(blocks))


def _block(lines: list[str], start: int, end: int, replacement: list[str]) -> tuple[Block, list[str]]:
    text, low, high = "".join(lines), start, end
    while low > 0 or high < len(lines):
        search = "".join(lines[low:high])
        if search.strip() and len(occurrences(text, search)) == 1:
            break
        low, high = max(0, low - 1), min(len(lines), high + 1)
    changed = [*lines[:start], *replacement, *lines[end:]]
    replaced = "".join([*lines[low:start], *replacement, *lines[end:high]])
    return Block("".join(lines[low:high]), replaced), changed


def _apply_blocks(text: str, blocks: tuple[Block, ...]) -> tuple[str, tuple[Match, ...]]:
    if not blocks:
        raise PatchError("The patch has no blocks.", Loss.EMPTY)
    matches = []
    for number, block in enumerate(blocks, 1):
        search, new = (part.replace("\r\n", "\n") for part in (block.search, block.replace))
        where = f"Block {number} of {len(blocks)}"
        if not search.strip():
            raise PatchError(f"{where} has an empty SEARCH text.", Loss.EMPTY)
        match find_place(text, search):
            case Several(message):
                raise PatchError(f"{where}: its SEARCH text{message}.", Loss.AMBIGUOUS)
            case Nowhere(message):
                raise PatchError(f"{where}: its SEARCH text{message}.", Loss.NO_MATCH)
            case Place() as place:
                text = _replaced(text, place, search, new)
                matches.append(place.match)
    return text, tuple(matches)


def _replaced(text: str, place: Place, search: str, new: str) -> str:
    start, end = place.start, place.end
    if place.match is Match.EXACT:
        return text[:start] + new + text[end:]
    # Whole lines, which the replacement is indented like; with nothing in their place their line end goes too.
    if not new.strip("\n"):
        return text[:start] + text[end + 1 :] if end < len(text) else text[: max(0, start - 1)]
    old_indent = _first_indent(search.strip("\n").split("\n"))
    new_indent = _first_indent(text[start:end].split("\n"))
    return (
        text[:start] + "\n".join(_reindent(new.strip("\n").split("\n"), old_indent, new_indent)) + text[end:]
    )


def _first_indent(lines: list[str]) -> str:
    line = next((line for line in lines if line.strip()), "")
    return line[: len(line) - len(line.lstrip())]


def _reindent(lines: list[str], old: str, new: str) -> list[str]:
    return [new + line[len(old) :] if line.strip() and line.startswith(old) else line for line in lines]


def _split(text: str) -> list[str]:
    """Lines with their ends, split at line feeds only, as the blocks are matched."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
