"""Edits applied to kernels, and differences between texts."""

from __future__ import annotations

import difflib
from dataclasses import replace

from mctskernel.core.edit import Block, Edit, Patch, Settings, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.space import SpaceError, with_settings


class PatchError(ValueError):
    """A change that can't be applied; the message is a sentence that says which block and why."""


def apply(kernel: Kernel, edit: Edit) -> Kernel:
    """The kernel after an edit. Raises PatchError when it can't be applied or changes nothing.

    Line ends become those of the kernel. Each SEARCH text must occur exactly once, to the letter or, failing
    that, as whole lines with different indentation and trailing blanks.
    """
    before = kernel.source.replace("\r\n", "\n")
    match edit.change:
        case WholeSource(source):
            after = source.replace("\r\n", "\n")
        case Patch(blocks):
            after = _apply_blocks(before, blocks)
        case Settings():
            after = _with_settings(kernel, edit)
    if not after.strip():
        raise PatchError("The edit leaves an empty source.")
    if "\r\n" in kernel.source:
        after = after.replace("\n", "\r\n")
    result = replace(kernel, source=after)
    if result.identity == kernel.identity:
        raise PatchError("The edit changes nothing but comments or spacing.")
    return result


def _with_settings(kernel: Kernel, edit: Edit) -> str:
    try:
        return with_settings(kernel, {factor.name: factor.level for factor in edit.factors}).source
    except SpaceError as error:
        raise PatchError(f"The edit can't be applied: {error}") from error


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
        if search.strip() and _occurrences(text, search) == 1:
            break
        low, high = max(0, low - 1), min(len(lines), high + 1)
    changed = [*lines[:start], *replacement, *lines[end:]]
    replaced = "".join([*lines[low:start], *replacement, *lines[end:high]])
    return Block("".join(lines[low:high]), replaced), changed


def _apply_blocks(text: str, blocks: tuple[Block, ...]) -> str:
    if not blocks:
        raise PatchError("The patch has no blocks.")
    for number, block in enumerate(blocks, 1):
        search, new = (part.replace("\r\n", "\n") for part in (block.search, block.replace))
        where = f"Block {number} of {len(blocks)}"
        if not search.strip():
            raise PatchError(f"{where} has an empty SEARCH text.")
        count = _occurrences(text, search)
        if count > 1:
            raise PatchError(f"{where}: its SEARCH text occurs {count} times; add lines that make it unique.")
        text = text.replace(search, new) if count else _apply_by_lines(text, search, new, where)
    return text


def _occurrences(text: str, search: str) -> int:
    """Occurrences, overlapping ones included."""
    count, position = 0, text.find(search)
    while position >= 0:
        count, position = count + 1, text.find(search, position + 1)
    return count


def _apply_by_lines(text: str, search: str, new: str, where: str) -> str:
    lines, wanted = text.split("\n"), search.strip("\n").split("\n")
    bare, bare_wanted = [line.strip() for line in lines], [line.strip() for line in wanted]
    size = len(wanted)
    found = [i for i in range(len(lines) - size + 1) if bare[i : i + size] == bare_wanted]
    if not found:
        first = next(line for line in bare_wanted if line)
        raise PatchError(f"{where}: its SEARCH text, from '{first[:60]}' on, isn't in the source.")
    if len(found) > 1:
        raise PatchError(
            f"{where}: its SEARCH text occurs {len(found)} times up to blanks; add lines that make it unique."
        )
    start = found[0]
    replacement = new.strip("\n").split("\n") if new.strip("\n") else []
    shifted = _reindent(replacement, _first_indent(wanted), _first_indent(lines[start : start + size]))
    return "\n".join([*lines[:start], *shifted, *lines[start + size :]])


def _first_indent(lines: list[str]) -> str:
    line = next((line for line in lines if line.strip()), "")
    return line[: len(line) - len(line.lstrip())]


def _reindent(lines: list[str], old: str, new: str) -> list[str]:
    return [new + line[len(old) :] if line.strip() and line.startswith(old) else line for line in lines]


def _split(text: str) -> list[str]:
    """Lines with their ends, split at line feeds only, as the blocks are matched."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
