"""Edits that a reply words in prose: SEARCH/REPLACE blocks, unified differences, or whole sources in fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mctskernel.core.edit import Block, Patch, WholeSource
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.draft import Draft, Drafts, prior_of

_SEARCH = re.compile(r"[ \t]*<{4,10}[ \t]*(?:SEARCH|ORIGINAL|HEAD|OLD|BEFORE)?[ \t:]*$", re.IGNORECASE)
_DIVIDER = re.compile(r"[ \t]*={4,10}[ \t]*(?:REPLACE)?[ \t]*$", re.IGNORECASE)
_REPLACE = re.compile(r"[ \t]*>{4,10}[ \t]*(?:REPLACE|UPDATED|NEW|AFTER)?[ \t:]*$", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(`{3,8}|~{3,8})[ \t]*([^`\n]{0,80})$")
_HUNK = re.compile(r"@@.*", re.DOTALL)
_FILE_NAME = re.compile(r"[\w./-]{1,200}\.(?:cuh?|py|cpp|cc|h|hpp|c)\b")
_PART = re.compile(r"(?:block|step|part|hunk|patch|then|and|code|change)\b", re.IGNORECASE)
_FILE = re.compile(r"(?:\+\+\+|---|\*\*\* (?:Update|Add|Delete) File:)[ \t]+(?:[ab]/)?(\S{1,200})")

_HEADING = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]+|\*\*(?=[^*\n]+\*\*:?[ \t]*$)"
    r"|(?:\d{1,3}[.)]|(?:edit|option|proposal|change)[ \t]+\d{1,3}\b)[ \t]*)(\S.*)$",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"^(?:(?:edit|option|proposal|change)\b[ \t]*\d{0,3}|\d{1,3}[.)])[ \t]*[:.)–—-]*[ \t]*", re.IGNORECASE
)
_FIELD = re.compile(
    r"[ \t]*(?:[-*+][ \t]+)?(?:\*\*|__|`)?"
    r"(category|title|rationale|reason|expected[ _-]effect|effect|prior|probability|confidence|file)"
    r"(?:\*\*|__|`)?[ \t]*:[ \t]*(?:\*\*|__)?[ \t]*(.*)$",
    re.IGNORECASE,
)
_FIELDS = {"reason": "rationale", "effect": "expected effect", "probability": "prior", "confidence": "prior"}


@dataclass(frozen=True)
class _Prose:
    """Lines between changes."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class _Change:
    """A change, or why it can't be read; None where it is cut off. `file` is what it says that it is for."""

    change: Patch | WholeSource | Dropped | None
    file: str = ""


_Part = _Prose | _Change


def drafts_in_prose(text: str) -> Drafts:
    """The edits of a text. Those of one heading, or between two, are one."""
    found: list[Draft | Dropped] = []
    cut = False
    heading: list[str] = []
    open_draft: Draft | None = None
    for part in _parts(text.split("\n")):
        if isinstance(part, _Prose):
            heading += part.lines
            continue
        cut = part.change is None
        if part.change is None:
            break
        if isinstance(part.change, Dropped):
            found.append(part.change)
            continue
        joined = None
        if open_draft is not None and not _begins_edit(heading):
            joined = _joined(open_draft, part.change)
        open_draft = joined or _headed(heading, part.change, part.file)
        if joined:
            found[_last_draft(found)] = joined
        else:
            found.append(open_draft)
        heading = []
    return Drafts(tuple(found), cut)


def patch_in(text: str) -> Patch | None:
    """The blocks of a text that is a patch, or None: it has none, or is cut off."""
    changes = [part.change for part in _parts(text.split("\n")) if isinstance(part, _Change)]
    patches = [change for change in changes if isinstance(change, Patch)]
    if not patches and (blocks := _hunks(text.split("\n"))):
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


def _parts(lines: list[str]) -> Iterator[_Part]:
    """Prose and changes in order. Fences around blocks are nothing; fences of other text are prose."""
    position, prose_start = 0, 0
    around = ""  # the mark of the fence that the next blocks stand in
    while position < len(lines):
        line = lines[position]
        part = None
        if _SEARCH.match(line):
            part, end = _block(lines, position)
        elif around and line.strip() == around:
            around, end = "", position + 1
        elif fence := _FENCE.match(line):
            part, end = _fenced(lines, position, fence)
            around = fence[1] if end == position + 1 else ""
        else:
            end = position + 1
        if part is not None:
            yield _Prose(tuple(lines[prose_start:position]))
            yield part
            prose_start = end
        position = end
    yield _Prose(tuple(lines[prose_start:]))


def _block(lines: list[str], start: int) -> tuple[_Change, int]:
    """The block that begins at a line, and the line behind it."""
    divider = None
    for position in range(start + 1, len(lines)):
        line = lines[position]
        if divider is None and _DIVIDER.match(line):
            divider = position
        elif _REPLACE.match(line):
            if divider is None:
                return _Change(
                    Dropped(Loss.WRONG_SCHEMA, "A SEARCH block has no ======= line.")
                ), position + 1
            search, new = lines[start + 1 : divider], lines[divider + 1 : position]
            return _Change(Patch((Block(_ended(search), _ended(new)),))), position + 1
        elif _SEARCH.match(line):
            return _Change(
                Dropped(Loss.WRONG_SCHEMA, "A SEARCH block has no >>>>>>> REPLACE line.")
            ), position
    return _Change(None), len(lines)


def _fenced(lines: list[str], start: int, fence: re.Match[str]) -> tuple[_Change | None, int]:
    """The change that a fence holds, if any, and the line behind it: of blocks, the first line inside."""
    mark, label = fence[1], fence[2].strip()
    end = start + 1
    while end < len(lines) and not lines[end].lstrip().startswith(mark):
        if _SEARCH.match(lines[end]):
            return None, start + 1
        end += 1
    body = lines[start + 1 : end]
    named = _FILE_NAME.search(label)
    file = named[0] if named else ""
    hunks = _hunks(body)
    if not hunks and not is_source("\n".join(body)):
        return None, end + 1
    if end == len(lines):
        return _Change(None), end
    if hunks:
        names = [match[1] for line in body if (match := _FILE.match(line)) and match[1] != "/dev/null"]
        return _Change(Patch(hunks), names[-1] if names else file), end + 1
    return _Change(WholeSource(_ended(body)), file), end + 1


def is_source(text: str) -> bool:
    """Whether a text has a kernel in it, of either language."""
    return "__global__" in text or "@triton.jit" in text


def _hunks(lines: list[str]) -> tuple[Block, ...]:
    """The hunks of a unified difference as blocks; line numbers are ignored, they are seldom right."""
    blocks: list[Block] = []
    old: list[str] = []
    new: list[str] = []
    inside = False
    for line in [*lines, "@@"]:
        if _HUNK.match(line):
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


def _last_draft(found: list[Draft | Dropped]) -> int:
    return max(index for index, item in enumerate(found) if isinstance(item, Draft))


def _joined(draft: Draft, change: Patch | WholeSource) -> Draft | None:
    """The draft with more blocks; None where either is no patch."""
    (before,) = draft.changes
    if not isinstance(before, Patch) or not isinstance(change, Patch):
        return None
    return replace(draft, changes=(Patch(before.blocks + change.blocks),))


def _begins_edit(lines: list[str]) -> bool:
    return any(_heading(line) or _field(line)[0] in {"title", "category"} for line in lines)


def _headed(lines: list[str], change: Patch | WholeSource, file: str) -> Draft:
    """A draft of a change, with what the lines before it say."""
    fields: dict[str, str] = {}
    heading = last = current = ""
    for line in lines:
        name, value = _field(line)
        if name:
            current = name
            fields[name] = value
        elif title := _heading(line):
            # The fields above the last heading are those of another edit.
            heading, current, fields = title, "", {}
        elif current and line.strip():
            fields[current] += " " + line.strip()
        else:
            current = ""
        last = line.strip() or last
    named = _FILE_NAME.fullmatch(last.strip("`*: ")) if last else None
    prose = "" if named or _FENCE.match(last) else last
    return Draft(
        fields.get("category", ""),
        fields.get("title", "") or heading or prose,
        fields.get("rationale", ""),
        fields.get("expected effect", ""),
        prior_of(fields.get("prior", "")),
        (change,),
        fields.get("file", "").strip("` ") or file or (named[0] if named else ""),
    )


def _heading(line: str) -> str:
    """The words of a heading, without its number; empty for other lines and for headings of a part of an edit."""
    match = _HEADING.match(line)
    if match is None:
        return ""
    words = _NUMBER.sub("", match[1].strip("*#: \t")).strip("*: \t")
    return "" if _PART.match(words) else words


def _field(line: str) -> tuple[str, str]:
    match = _FIELD.match(line)
    if match is None:
        return "", ""
    name = match[1].lower().replace("_", " ").replace("-", " ")
    return _FIELDS.get(name, name), match[2].strip("* \t")
