"""Edits applied to kernels, and differences between texts."""

from __future__ import annotations

import difflib
import re

from mctskernel.core.edit import Block, Edit, Patch, Settings, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Loss
from mctskernel.core.space import SpaceError, with_settings


class PatchError(ValueError):
    """A change that can't be applied. The message says which block and why, in words for its author."""

    def __init__(self, message: str, loss: Loss) -> None:
        super().__init__(message)
        self.loss = loss


def apply(kernel: Kernel, edit: Edit) -> Kernel:
    """Apply an edit to a kernel. Raises PatchError when it can't be applied or changes nothing.

    Line ends become those of the kernel. Each SEARCH text must fit in exactly one place, up to spacing.
    """
    before = kernel.source.replace("\r\n", "\n")
    language = kernel.language
    match edit.change:
        case WholeSource(source):
            language = edit.change.language or language
            after = source.replace("\r\n", "\n")
        case Patch(blocks):
            after = _apply_blocks(before, blocks)
        case Settings():
            after = _with_settings(kernel, edit)
    if not after.strip():
        raise PatchError("The edit leaves an empty source.", Loss.EMPTY)
    if "\r\n" in kernel.source:
        after = after.replace("\n", "\r\n")
    result = Kernel(after, language)
    if result.identity == kernel.identity:
        raise PatchError("The edit changes nothing but comments or spacing.", Loss.NO_CHANGE)
    return result


def _with_settings(kernel: Kernel, edit: Edit) -> str:
    try:
        return with_settings(kernel, {factor.name: factor.level for factor in edit.factors}).source
    except SpaceError as error:
        raise PatchError(f"The edit can't be applied: {error}", Loss.NO_MATCH) from error


def unified_diff(before: str, after: str) -> str:
    """A unified diff without file names, empty when the texts are equal."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = list(difflib.unified_diff(old, new))[2:]
    torn = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + torn for line in lines)


def as_patch(before: str, after: str) -> Patch:
    """SEARCH/REPLACE blocks, each unique, that turn one text into another; `before` must not be blank."""
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


def _apply_blocks(text: str, blocks: tuple[Block, ...]) -> str:
    if not blocks:
        raise PatchError("The patch has no blocks.", Loss.EMPTY)
    for number, block in enumerate(blocks, 1):
        search, new = (part.replace("\r\n", "\n") for part in (block.search, block.replace))
        where = f"Block {number} of {len(blocks)}"
        if not search.strip():
            raise PatchError(f"{where} has an empty SEARCH text.", Loss.EMPTY)
        text = _replaced(text, _find(text, search, where), search, new)
    return text


def _replaced(text: str, place: tuple[int, int, bool], search: str, new: str) -> str:
    start, end, is_exact = place
    if is_exact:
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


MOST_COUNTED = 10  # occurrences beyond these are not counted

_ELISION = re.compile(r"\s*+(?://|#|/\*)?\s*+(?:\.\.\.|…)")


def _find(text: str, search: str, where: str) -> tuple[int, int, bool]:
    """Where a SEARCH text that isn't blank fits, and whether it does exactly; otherwise whole lines, up to spacing.

    Lines end in line feeds in both. Raises PatchError unless there is exactly one place.
    """
    if exact := occurrences(text, search):
        if len(exact) > 1:
            raise PatchError(
                f"{where}: its SEARCH text occurs {_times(exact)}; add lines that make it unique.",
                Loss.AMBIGUOUS,
            )
        return exact[0], exact[0] + len(search), True
    lines = [line for line in re.finditer("^.*$", text, re.MULTILINE) if line[0].strip()]
    sought = [squeezed for line in search.split("\n") if (squeezed := _squeeze(line))]
    joined = "\n" + "\n".join(_squeeze(line[0]) for line in lines) + "\n"
    found = occurrences(joined, "\n" + "\n".join(sought) + "\n")
    if len(found) > 1:
        raise PatchError(
            f"{where}: its SEARCH text occurs {_times(found)} up to spacing; add lines that make it unique.",
            Loss.AMBIGUOUS,
        )
    if not found:
        wanted = search.strip("\n").split("\n")
        first = next(line for line in wanted if line.strip()).strip()[:60]
        hint = ""
        if any(_ELISION.match(line) for line in wanted):
            hint = " It leaves lines out with '...': quote each of them."
        raise PatchError(
            f"{where}: its SEARCH text, from '{first}' on, isn't in the source.{hint}", Loss.NO_MATCH
        )
    number = joined.count("\n", 0, found[0])
    return lines[number].start(), lines[number + len(sought) - 1].end(), False


def occurrences(text: str, search: str) -> list[int]:
    """Offsets of the first occurrences, overlapping ones included; `MOST_COUNTED` at most."""
    found: list[int] = []
    position = text.find(search)
    while position >= 0 and len(found) < MOST_COUNTED:
        found.append(position)
        position = text.find(search, position + 1)
    return found


def _squeeze(line: str) -> str:
    return "".join(line.split())


def _times(found: list[int]) -> str:
    return f"{len(found)} times" if len(found) < MOST_COUNTED else f"{MOST_COUNTED} times or more"
