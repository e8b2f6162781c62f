"""Edits applied to kernels, and differences between texts."""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import dataclass, replace

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

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

    Line ends become those of the kernel. Each SEARCH text must fit in exactly one place (`find_place`).
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
        raise PatchError("The edit leaves an empty source.", Loss.EMPTY)
    if "\r\n" in kernel.source:
        after = after.replace("\n", "\r\n")
    result = replace(kernel, source=after)
    if result.identity == kernel.identity:
        raise PatchError("The edit changes nothing but comments or spacing.", Loss.NO_CHANGE)
    return result


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


def _apply_blocks(text: str, blocks: tuple[Block, ...]) -> str:
    if not blocks:
        raise PatchError("The patch has no blocks.", Loss.EMPTY)
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
    return text


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


LEAST_LIKENESS = 0.85
"""The share of characters that have to agree, of the lines of a place and of those searched for."""

LEAST_LINE_LIKENESS = 0.7
"""The same of each pair of lines: one line that is altogether different is not a misquotation."""

LEAST_SHOWN = 0.5
"""The likeness from which the nearest lines are mentioned."""

LEAST_LEAD = 0.15
"""By how much the likeness of the best place has to exceed that of the next best."""

LEAST_CHARACTERS = 16
"""A shorter text, blanks aside, is like too many."""

MOST_PAIRS = 2_000_000
"""Pairs of lines that are compared, and the next, pairs of characters, bound the work to under a second."""

MOST_CHARACTER_PAIRS = 2**33

MOST_COUNTED = 10
"""Occurrences beyond these are not counted."""

_ELISION = re.compile(r"\s*+(?://|#|/\*)?\s*+(?:\.\.\.|…)")


class Match(enum.StrEnum):
    """How closely a SEARCH text matches the place that it fits, the closest first."""

    EXACT = "exact"
    SPACING = "spacing"
    SIMILAR = "similar"


@dataclass(frozen=True)
class Place:
    """Offsets of the text that matches. Anything but an exact match covers whole lines."""

    start: int
    end: int
    match: Match


@dataclass(frozen=True)
class Several:
    """The text fits in more than one place; `message` ends a sentence that begins with it."""

    message: str


@dataclass(frozen=True)
class Nowhere:
    """The text fits nowhere; `message` ends a sentence that begins with it."""

    message: str


def find_place(text: str, search: str) -> Place | Several | Nowhere:
    """Where a SEARCH text that isn't blank fits. Lines end in line feeds in both."""
    found = occurrences(text, search)
    if found:
        if len(found) > 1:
            return Several(f" occurs {_times(found)}; add lines that make it unique")
        return Place(found[0], found[0] + len(search), Match.EXACT)
    lines, wanted = _lines(text), search.strip("\n").split("\n")
    return _by_indentation(lines, wanted) or _by_likeness(lines, wanted)


def occurrences(text: str, search: str) -> list[int]:
    """Offsets of the first occurrences, overlapping ones included; `MOST_COUNTED` at most."""
    found: list[int] = []
    position = text.find(search)
    while position >= 0 and len(found) < MOST_COUNTED:
        found.append(position)
        position = text.find(search, position + 1)
    return found


@dataclass(frozen=True)
class _Line:
    """A line's number from 1, the offsets of its text, and that text without blanks at its ends."""

    number: int
    start: int
    end: int
    bare: str


def _lines(text: str) -> list[_Line]:
    lines, start = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        lines.append(_Line(number, start, start + len(line), line.strip()))
        start += len(line) + 1
    return lines


def _by_indentation(lines: list[_Line], wanted: list[str]) -> Place | Several | None:
    """The place that differs in indentation and trailing blanks alone."""
    joined = "\n" + "\n".join(line.bare for line in lines) + "\n"
    found = occurrences(joined, "\n" + "\n".join(line.strip() for line in wanted) + "\n")
    if len(found) > 1:
        return Several(f" occurs {_times(found)} up to blanks; add lines that make it unique")
    if not found:
        return None
    first = joined.count("\n", 0, found[0])
    return Place(lines[first].start, lines[first + len(wanted) - 1].end, Match.SPACING)


def _by_likeness(lines: list[_Line], wanted: list[str]) -> Place | Several | Nowhere:
    """The place whose lines, blank ones aside, are like those searched for."""
    nowhere = f", from '{_short(next(line for line in wanted if line.strip()))}' on, isn't in the source"
    if any(_ELISION.match(line) for line in wanted):
        return Nowhere(f"{nowhere}. It leaves lines out with '...': quote each of them")
    solid = [line for line in lines if line.bare]
    sought = [squeezed for line in wanted if (squeezed := _squeeze(line))]
    characters = sum(len(line.bare) for line in solid) * sum(map(len, sought))
    if len(sought) > len(solid) or len(solid) * len(sought) > MOST_PAIRS or characters > MOST_CHARACTER_PAIRS:
        return Nowhere(nowhere)
    likeness, weakest = _likeness(sought, [_squeeze(line.bare) for line in solid])
    best = int(likeness.argmax())
    place = solid[best : best + len(sought)]
    rivals = likeness.copy()
    rivals[best] = -1.0
    rival = int(rivals.argmax())
    nearest = f"{nowhere}. The nearest {_quoted(place)}"
    if likeness[best] == 1.0:
        if rivals[rival] == 1.0:
            return Several(" occurs several times up to spacing; add lines that make it unique")
        return Place(place[0].start, place[-1].end, Match.SPACING)
    if (
        likeness[best] < LEAST_LIKENESS
        or weakest[best] < LEAST_LINE_LIKENESS
        or sum(map(len, sought)) < LEAST_CHARACTERS
    ):
        return Nowhere(nearest if likeness[best] >= LEAST_SHOWN else nowhere)
    if likeness[best] - rivals[rival] < LEAST_LEAD:
        return Several(
            f"{nearest}, and line {solid[rival].number} is much like it. Quote the lines as they are, with more around"
        )
    return Place(place[0].start, place[-1].end, Match.SIMILAR)


def _likeness(sought: list[str], solid: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """By first line of a place: the share of characters that agree, of all its lines and of the line with the least.

    It is 1 - d / (a + b) for texts of a and b characters that d deletions and insertions make equal, with d summed
    over the pairs of lines.
    """
    distances = cdist(sought, solid, scorer=Indel.distance, dtype=np.int32)
    lengths = np.array([len(line) for line in solid], dtype=np.int64)
    places = len(solid) - len(sought) + 1
    distance = np.zeros(places, dtype=np.int64)
    length = np.zeros(places, dtype=np.int64)
    weakest = np.ones(places)
    for row, line in enumerate(sought):
        apart = distances[row, row : row + places]
        both = lengths[row : row + places] + len(line)
        distance += apart
        length += both
        weakest = np.minimum(weakest, 1.0 - apart / both)
    return 1.0 - distance / length, weakest


def _squeeze(line: str) -> str:
    return "".join(line.split())


def _quoted(lines: list[_Line], most: int = 4) -> str:
    first, last = lines[0].number, lines[-1].number
    where = f"line is {first}" if first == last else f"lines are {first} to {last}"
    return f"{where}: " + " ".join(f"`{line.bare[:100]}`" for line in lines[:most])


def _short(line: str) -> str:
    return line.strip()[:60]


def _times(found: list[int]) -> str:
    return f"{len(found)} times" if len(found) < MOST_COUNTED else f"{MOST_COUNTED} times or more"
