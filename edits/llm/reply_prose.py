"""Read edits in prose: SEARCH/REPLACE blocks, unified diffs, or whole sources in fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mctskernel.core.edit import Block, Patch, WholeSource
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.reply_format import Draft, Drafts, prior_of

_SEARCH = re.compile(r"[ \t]*<{4,10}[ \t]*(?:SEARCH|ORIGINAL|HEAD|OLD|BEFORE)?[ \t:]*$", re.IGNORECASE)
_DIVIDER = re.compile(r"[ \t]*={4,10}[ \t]*(?:REPLACE)?[ \t]*$", re.IGNORECASE)
_REPLACE = re.compile(r"[ \t]*>{4,10}[ \t]*(?:REPLACE|UPDATED|NEW|AFTER)?[ \t:]*$", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(`{3,8}|~{3,8})[ \t]*([^`\n]{0,80})$")
_HEADING = re.compile(r"[ \t]*(?:#{1,6}[ \t]+|\*\*(?=[^*\n]+\*\*:?[ \t]*$))(\S.*)$")
_NUMBER = re.compile(
    r"^(?:(?:edit|option|proposal)\b[ \t]*\d{0,3}|\d{1,3}[.)])[ \t]*[:.)–—-]*[ \t]*", re.IGNORECASE
)
_FIELD = re.compile(
    r"[ \t]*(?:[-*+][ \t]+)?(?:\*\*)?(category|title|rationale|expected[ _-]effect|prior)(?:\*\*)?[ \t]*:"
    r"[ \t]*(?:\*\*)?[ \t]*(.*)$",
    re.IGNORECASE,
)

_CUT = None
"""In place of a change: the text ends in the middle of it."""

_Change = Patch | WholeSource | Dropped | None
_Part = list[str] | tuple[_Change]
"""Lines of prose, or a change."""


def drafts_in_prose(text: str) -> Drafts:
    """The edits of a text. Changes under one heading, or between two headings, are one edit."""
    found: list[Draft | Dropped] = []
    heading: list[str] = []
    last: int | None = None  # the place of the draft that more blocks may join
    for part in _parts(text.split("\n")):
        if isinstance(part, list):
            heading += part
            continue
        (change,) = part
        if change is _CUT:
            return Drafts(tuple(found), cut=True)
        if isinstance(change, Dropped):
            found.append(change)
            continue
        before = found[last] if last is not None and not _begins_edit(heading) else None
        joined = _joined(before, change)
        if joined is not None and last is not None:
            found[last] = joined
        else:
            last = len(found)
            found.append(_headed(heading, change))
        heading = []
    return Drafts(tuple(found))


def patch_in(text: str) -> Patch | None:
    """The blocks of a text that is a patch, or None: it has none, or is cut off."""
    lines = text.split("\n")
    changes = [part[0] for part in _parts(lines) if isinstance(part, tuple)]
    patches = [change for change in changes if isinstance(change, Patch)]
    if not patches and (blocks := _hunks(lines)):
        return Patch(blocks)
    if not patches or len(patches) != len(changes):
        return None
    return Patch(tuple(block for patch in patches for block in patch.blocks))


def unfenced(text: str) -> str:
    """A source without the fence around it, if there is one."""
    lines = text.strip().split("\n")
    if len(lines) > 1 and _FENCE.match(lines[0]) and _FENCE.match(lines[-1]):
        return "\n".join(lines[1:-1]) + "\n"
    return text


def is_source(text: str) -> bool:
    """Whether a text has a kernel in it, of either language."""
    return "__global__" in text or "@triton.jit" in text


def _parts(lines: list[str]) -> Iterator[_Part]:
    """Prose and changes in order. A fence around blocks is ignored; a fence around other text is prose."""
    position, prose_start = 0, 0
    around = ""  # the mark of the fence around the next blocks
    while position < len(lines):
        line = lines[position]
        part: tuple[_Change] | None = None
        if _SEARCH.match(line):
            change, end = _block(lines, position)
            part = (change,)
        elif around and line.strip() == around:
            around, end = "", position + 1
        elif fence := _FENCE.match(line):
            part, end = _fenced(lines, position, fence[1])
            around = fence[1] if end == position + 1 else ""
        else:
            end = position + 1
        if part is not None:
            yield lines[prose_start:position]
            yield part
            prose_start = end
        position = end
    yield lines[prose_start:]


def _block(lines: list[str], start: int) -> tuple[_Change, int]:
    """The SEARCH/REPLACE block that begins at a line, and the line after it."""
    divider = None
    for position in range(start + 1, len(lines)):
        line = lines[position]
        if divider is None and _DIVIDER.match(line):
            divider = position
        elif _REPLACE.match(line):
            if divider is None:
                return Dropped(Loss.WRONG_SCHEMA, "A SEARCH block has no ======= line."), position + 1
            search, new = lines[start + 1 : divider], lines[divider + 1 : position]
            return Patch((Block(_ended(search), _ended(new)),)), position + 1
        elif _SEARCH.match(line):
            return Dropped(Loss.WRONG_SCHEMA, "A SEARCH block has no >>>>>>> REPLACE line."), position
    return _CUT, len(lines)


def _fenced(lines: list[str], start: int, mark: str) -> tuple[tuple[_Change] | None, int]:
    """The change in a fence, if any, and the line after it; of blocks, the first line inside."""
    end = start + 1
    while end < len(lines) and not lines[end].lstrip().startswith(mark):
        if _SEARCH.match(lines[end]):
            return None, start + 1
        end += 1
    body = lines[start + 1 : end]
    hunks = _hunks(body)
    if not hunks and not is_source("\n".join(body)):
        return None, end + 1
    if end == len(lines):
        return (_CUT,), end
    return (Patch(hunks) if hunks else WholeSource(_ended(body)),), end + 1


def _hunks(lines: list[str]) -> tuple[Block, ...]:
    """The hunks of a unified diff as blocks; line numbers are ignored, they are seldom right."""
    blocks: list[Block] = []
    old: list[str] = []
    new: list[str] = []
    inside = False
    for line in [*lines, "@@"]:
        if line.startswith("@@"):
            if inside and old != new:
                blocks.append(Block(_ended(old), _ended(new)))
            old, new, inside = [], [], True
        elif not inside or line.startswith(("\\", "*** ", "--- ", "+++ ", "diff ", "index ")):
            continue
        elif line.startswith("+"):
            new.append(line[1:])
        elif line.startswith("-"):
            old.append(line[1:])
        else:
            kept = line[1:] if line.startswith(" ") else line
            old.append(kept)
            new.append(kept)
    return tuple(blocks)


def _ended(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _joined(draft: object, change: Patch | WholeSource) -> Draft | None:
    """A draft with more blocks; None where it or the change is no patch."""
    if not isinstance(draft, Draft) or not isinstance(change, Patch):
        return None
    before = draft.change
    return replace(draft, change=Patch(before.blocks + change.blocks)) if isinstance(before, Patch) else None


def _begins_edit(lines: list[str]) -> bool:
    return any(_heading(line) or _field(line)[0] in {"title", "category"} for line in lines)


def _headed(lines: list[str], change: Patch | WholeSource) -> Draft:
    """A draft of a change, with the fields in the lines before it."""
    fields: dict[str, str] = {}
    heading = last = current = ""
    for line in lines:
        name, value = _field(line)
        if name:
            current = name
            fields[name] = value
        elif title := _heading(line):
            # The fields above the last heading belong to another edit.
            heading, current, fields = title, "", {}
        elif current and line.strip():
            fields[current] += " " + line.strip()
        else:
            current = ""
        last = line.strip() or last
    return Draft(
        change,
        fields.get("category", ""),
        fields.get("title", "") or heading or ("" if _FENCE.match(last) else last),
        fields.get("rationale", ""),
        fields.get("expected effect", ""),
        prior_of(fields.get("prior", "")),
    )


def _heading(line: str) -> str:
    """The words of a heading, without its number; empty for other lines."""
    match = _HEADING.match(line)
    return _NUMBER.sub("", match[1].strip("*#: \t")).strip("*: \t") if match else ""


def _field(line: str) -> tuple[str, str]:
    match = _FIELD.match(line)
    if match is None:
        return "", ""
    return match[1].lower().replace("_", " ").replace("-", " "), match[2].strip("* \t")
