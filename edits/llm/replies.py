"""Read a model's reply: edits that apply to the kernel, edits that don't, and what was lost.

A reply is read as JSON by EDITS_SCHEMA, anywhere in the text and cut off or not, or else as SEARCH/REPLACE blocks and
whole sources in fences. It is hostile input: whatever its text, reading it takes bounded time and raises nothing.
Nothing is repaired: libraries that close what was cut off would return half a kernel as if it were whole.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel
from mctskernel.core.launch_plan import LaunchPlanError, plan_of
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.patch import PatchError, apply

MAX_REPLY = 1_000_000  # characters of a reply that are read
MAX_SOURCE_BYTES = 128 * 1024  # of a kernel after an edit, in UTF-8
MAX_VALUES = 200  # JSON values that one reply is searched for
MAX_LISTED = 1000  # entries of a list that are looked at
CONSIDERED = 4  # edits that are looked at, for each that is wanted
MAX_TITLE = 120
MAX_PROSE = 1000
MAX_REASON = 800  # characters. A reason may quote what a model wrote at any length.
PRIOR = 0.5  # of an edit that names none
LEAST_PRIOR = 0.01  # of an edit with a prior of zero or below: it is still tried at some point


def _closed(properties: dict[str, object]) -> dict[str, object]:
    """An object with these properties, all of them and no others, as strict modes ask for."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


def _or_null(kind: dict[str, object], description: str) -> dict[str, object]:
    return {"anyOf": [kind, {"type": "null"}], "description": description}


_BLOCK = _closed(
    {
        "search": _text("Whole lines of the source, verbatim, that occur in it once."),
        "replace": _text("What takes their place."),
    }
)

# Bounds such as `minimum` are said in words: not every server takes them, and some refuse a schema that has them. The
# reasons come first, because a model writes the properties in this order.
_EDIT = _closed(
    {
        "rationale": _text("Why this helps this kernel, from its evidence."),
        "category": {"type": "string", "enum": [str(category) for category in Category]},
        "title": _text("What is done, in one line."),
        "expected_effect": _text("What becomes how much better, and what may become worse."),
        "prior": {
            "type": "number",
            "description": "The probability, from 0 to 1, that the kernel gets faster.",
        },
        "patch": _or_null(
            {"type": "array", "items": _BLOCK},
            "The change, applied block by block; null where `source` is given.",
        ),
        "source": _or_null(
            {"type": "string"},
            "The whole new source, launch plan included, where little of the old one stays; else null.",
        ),
    }
)

EDITS_SCHEMA: Mapping[str, object] = _closed({"edits": {"type": "array", "items": _EDIT}})
"""A reply with edits: every property required and no others allowed, as strict structured output needs."""

DRAFT_SCHEMA: Mapping[str, object] = _closed(
    {
        "reference": _or_null({"type": "string"}, "The whole reference.py; null where it is given."),
        "task": _or_null({"type": "string"}, "The whole task.toml; null where it is given."),
    }
)
"""A reply that states a task."""


@dataclass(frozen=True)
class Unfit:
    """An edit that can't be applied as it is written, and why, in words for the model that wrote it."""

    edit: Edit
    loss: Loss
    reason: str


@dataclass(frozen=True)
class Reading:
    """The edits of a reply that apply, in its order, and the rest; `unfit` ones are returned to the model once."""

    edits: tuple[Edit, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    dropped: tuple[Dropped, ...] = ()


def read_reply(text: str, kernel: Kernel, limit: int) -> Reading:
    """The edits of a kernel that a reply proposes, in any format that `edits/prompts/reply_format.md` leads to.

    At most `limit` are taken, those that don't apply included. Their `proposer` and `exchange` are left to the caller.
    A reply without any edit has at least one loss.
    """
    answer, unfinished = _without_thoughts(_printable(text[:MAX_REPLY]))
    written = _written(answer)
    cut = unfinished or written.cut or len(text) > MAX_REPLY
    if not written.edits:
        return Reading(dropped=(_nothing(answer, written, cut=cut),))
    taken: dict[str, Edit] = {}  # by the identity of the kernel that an edit makes
    unfit: list[Unfit] = []
    dropped: list[Dropped] = []
    for edit in written.edits[: CONSIDERED * limit]:
        if len(taken) + len(unfit) >= limit:
            break
        found = edit if isinstance(edit, Dropped) else _fitted(edit, kernel, taken)
        if isinstance(found, Unfit):
            unfit.append(found)
        elif isinstance(found, Dropped):
            dropped.append(found)
    if cut:
        dropped.append(Dropped(Loss.CUT_OFF, "The reply ends in the middle of an edit."))
    return Reading(tuple(taken.values()), tuple(unfit), tuple(dropped))


def one_line(text: str, most: int) -> str:
    """A text on one line, without control or direction characters, cut to a number of characters."""
    words = text[: 8 * most].split()
    shown = ("".join(letter for letter in word if unicodedata.category(letter)[0] != "C") for word in words)
    line = " ".join(word for word in shown if word)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def category_of(text: str) -> Category:
    name = text[:60].lower().replace("_", " ").strip()
    nearest = difflib.get_close_matches(name, _CATEGORIES, 1)
    return _CATEGORIES[nearest[0]] if nearest else Category.ALGORITHM


_CATEGORIES = {
    name.lower().replace("_", " "): category
    for category in Category
    for name in (category.value, category.name)
}

# All but line feeds and tabs, halves of surrogate pairs, and marks that reverse or hide text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_THOUGHT = re.compile(r"\s*+<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT_END = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am)? (?:sorry|unable|not able)|i (?:can(?:'t|not| not)|won't|will not|must decline|have to decline)"
    r"|as an ai|against my|cannot (?:help|assist|comply)|can't (?:help|assist|comply))|\"refusal\"\s*:\s*\"",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Written:
    """A reply's edits and what can't be read of them; it may be `cut` short, or its list of edits `vacant`."""

    edits: Sequence[Edit | Dropped] = ()
    cut: bool = False
    vacant: bool = False


def _written(text: str) -> _Written:
    listed = _in_json(text)
    if listed.cut or any(isinstance(each, Edit) for each in listed.edits):
        return listed
    prose = _in_prose(text)
    if prose.edits or prose.cut:
        return prose
    if _is_source(text) and "```" not in text and not listed.edits:
        return _Written((_edit(WholeSource(text), {}),))
    return listed


def _printable(text: str) -> str:
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _without_thoughts(text: str) -> tuple[str, bool]:
    """The text after the thoughts that it begins with, and whether those never end."""
    if _THOUGHT.match(text) is None:
        # Some servers take the opening tag for part of the prompt.
        end = _THOUGHT_END.search(text)
        return (text[end.end() :], False) if end and text[end.end() :].strip() else (text, False)
    position = 0
    while (thought := _THOUGHT.match(text, position)) is not None:
        end = _THOUGHT_END.search(text, thought.end())
        if end is None:
            return "", True
        position = end.end()
    return text[position:], False


def _nothing(answer: str, written: _Written, *, cut: bool) -> Dropped:
    """Why a reply holds no edit at all."""
    if cut:
        return Dropped(Loss.CUT_OFF, "The reply ends before its first edit is whole.")
    if not answer.strip():
        return Dropped(Loss.EMPTY, "The reply is empty.")
    if written.vacant:
        return Dropped(Loss.EMPTY, "The reply lists no edits.")
    if _REFUSAL.search(answer[:1000]):
        return Dropped(Loss.REFUSAL, f"The model refuses: {one_line(answer, MAX_TITLE)}")
    if answer.lstrip().startswith(("{", "[", "```json")):
        return Dropped(Loss.WRONG_SCHEMA, "The reply is JSON, but not a list of edits.")
    return Dropped(
        Loss.UNREADABLE, "The reply holds neither JSON, SEARCH/REPLACE blocks, nor a whole source."
    )


def _fitted(edit: Edit, kernel: Kernel, taken: dict[str, Edit]) -> Unfit | Dropped | None:
    """Take an edit that makes a new kernel, or say what is wrong with it."""
    mark = kernel.language.mark
    if isinstance(edit.change, WholeSource) and mark not in edit.change.source:
        reason = f"The edit '{edit.title}' gives a source without any {mark} function."
        return Dropped(Loss.WRONG_SCHEMA, reason)
    try:
        result = apply(kernel, edit)
    except PatchError as error:
        if error.loss is Loss.NO_CHANGE:
            return Dropped(error.loss, f"The edit '{edit.title}' changes nothing but comments or spacing.")
        return Unfit(edit, error.loss, one_line(str(error), MAX_REASON))
    size = len(result.source.encode())
    if size > MAX_SOURCE_BYTES:
        reason = f"The edit '{edit.title}' leaves {size} bytes of source; the limit is {MAX_SOURCE_BYTES}."
        return Dropped(Loss.WRONG_SCHEMA, reason)
    if result.identity in taken:
        reason = f"The edit '{edit.title}' does the same as '{taken[result.identity].title}'."
        return Dropped(Loss.REPEATED, reason)
    fault = _plan_fault(result)
    if fault and not _plan_fault(kernel):
        return Unfit(edit, Loss.WRONG_SCHEMA, one_line(fault, MAX_REASON))
    taken[result.identity] = edit
    return None


def _plan_fault(kernel: Kernel) -> str:
    try:
        plan_of(kernel)
    except LaunchPlanError as error:
        return str(error)
    return ""


def _edit(change: Patch | WholeSource, members: Mapping[str, object]) -> Edit:
    def words(name: str, most: int) -> str:
        value = members.get(name)
        return one_line(value, most) if isinstance(value, str) else ""

    category = category_of(words("category", MAX_TITLE))
    return Edit(
        category,
        words("title", MAX_TITLE) or f"{category} edit",
        change,
        words("rationale", MAX_PROSE),
        words("expected_effect", MAX_PROSE),
        _prior(members.get("prior")),
    )


def _prior(value: object) -> float:
    """A prior given as a number or a percentage."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return PRIOR
    if not math.isfinite(number):
        return PRIOR
    share = number / 100 if text.endswith("%") or number > 1 else number
    return min(max(share, LEAST_PRIOR), 1.0)


# Edits in JSON: each is decoded on its own where the list around it is cut off or broken.

_FIELDS = ("rationale", "category", "title", "expected_effect", "prior", "patch", "source")
_OPENING = re.compile(rf'(?:\[\s*+)?\{{\s*+"(?:edits|node|version|proposer|{"|".join(_FIELDS)})"\s*+:')

# Line feeds and tabs in strings are taken as they are.
_DECODER = json.JSONDecoder(strict=False)


def _in_json(text: str) -> _Written:
    """The edits of every JSON value in a text that looks like one or a list of them."""
    found: list[Edit | Dropped] = []
    vacant = is_whole = False
    broken: ValueError | RecursionError | None = None
    position = 0
    for _ in range(MAX_VALUES):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError) as error:
            # What is inside may be whole: the edits of a list that is cut off.
            position = opening.start() + 1
            broken, is_whole = error, False
        else:
            if isinstance(value, dict):
                vacant = vacant or value.get("edits") == []
                value = value.get("edits", [value])
            read = list(map(_of_json, value[:MAX_LISTED])) if isinstance(value, list) else []
            found += read
            # A whole list in an object whose last brackets are missing lost nothing.
            is_whole = text[opening.start()] == "[" and bool(read)
    cut = broken is not None and _ran_out(broken, text) and not is_whole
    if broken is not None and not cut and not found:
        found.append(Dropped(Loss.WRONG_SCHEMA, f"The JSON can't be read: {one_line(str(broken), 200)}."))
    return _Written(found, cut, vacant)


def _ran_out(error: ValueError | RecursionError, text: str) -> bool:
    """Whether the text ended within a value."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    # A name, a number or an escape that is cut off is an error where it begins.
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()) - len("undefined")


def _of_json(value: object) -> Edit | Dropped:
    if not isinstance(value, dict):
        return Dropped(Loss.WRONG_SCHEMA, f"An edit is {type(value).__name__}, not an object.")
    source = value.get("source")
    blocks = _blocks(value.get("patch"))
    if isinstance(source, str) and source.strip():
        return _edit(WholeSource(_printable(_unfenced(source))), value)
    if blocks:
        return _edit(Patch(blocks), value)
    title = one_line(str(value.get("title", ""))[:MAX_PROSE], MAX_TITLE)
    fault = (
        "a patch that isn't a list of {search, replace}" if value.get("patch") else "no patch and no source"
    )
    return Dropped(Loss.WRONG_SCHEMA, f"The edit '{title}' has {fault}.")


def _blocks(value: object) -> tuple[Block, ...]:
    """The blocks of a patch; none where it isn't a list of them."""
    try:
        found = msgspec.convert(value[:MAX_LISTED] if isinstance(value, list) else (), tuple[Block, ...])
    except UNDECODABLE:
        return ()
    return tuple(Block(_printable(each.search), _printable(each.replace)) for each in found)


def _unfenced(text: str) -> str:
    """A source without the fence around it, if there is one."""
    lines = text.strip().split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1]) + "\n"
    return text


# Edits in prose: a heading, lines such as `category: ...`, and blocks or a fenced source.

_MARK = re.compile(
    r"[ \t]*(?:(?P<search><{5,9} ?SEARCH)|(?P<divider>={5,9})|(?P<end>>{5,9} ?REPLACE)|(?P<fence>```[^`\n]{0,80}))"
    r"[ \t]*$"
)
_HEADING = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]+|\*\*(?=[^*\n]+\*\*:?[ \t]*$))(?:(?:edit )?\d+[:.)] *)?(\S.*)$", re.I
)
_FIELD = re.compile(
    r"[ \t]*(?:[-*+][ \t]+)?(?:\*\*)?(category|title|rationale|expected[ _]effect|prior)(?:\*\*)?[ \t]*:"
    r"[ \t]*(?:\*\*)?[ \t]*(.*)$",
    re.IGNORECASE,
)


@dataclass
class _Section:
    """An edit in prose: what its heading says of it, and its blocks or its source."""

    members: dict[str, str]
    blocks: list[Block] = field(default_factory=list)
    source: str = ""

    def edit(self) -> Edit:
        """The edit; its blocks hold where it has both."""
        return _edit(Patch(tuple(self.blocks)) if self.blocks else WholeSource(self.source), self.members)


def _in_prose(text: str) -> _Written:
    """The edits of a text. Changes under one heading, or between two headings, are one edit."""
    sections: list[_Section] = []
    lines: dict[str, list[str]] = {"prose": [], "search": [], "divider": [], "fence": []}
    place, in_fence = "prose", False  # `place` is the mark after which we are

    def section() -> _Section:
        members = _members(lines["prose"])
        lines["prose"] = []
        if not sections or sections[-1].source or {"title", "category"} & members.keys():
            sections.append(_Section(members))
        return sections[-1]

    for line in text.split("\n"):
        match = _MARK.match(line)
        mark = match.lastgroup if match else ""
        if mark == "search" and place in ("prose", "fence"):
            # A fence may be around the blocks.
            in_fence, place = in_fence or place == "fence", "search"
            lines["search"], lines["divider"] = [], []
        elif mark == "divider" and place == "search":
            place = "divider"
        elif mark == "end" and place == "divider":
            section().blocks.append(Block(_ended(lines["search"]), _ended(lines["divider"])))
            place = "prose"
        elif mark == "fence" and place == "prose":
            place, in_fence = ("prose", False) if in_fence else ("fence", False)
            lines["fence"] = []
        elif mark == "fence" and place == "fence":
            place = "prose"
            if _is_source(source := _ended(lines["fence"])):
                section().source = source
        else:
            lines[place].append(line)
    cut = place in ("search", "divider") or (place == "fence" and _is_source("\n".join(lines["fence"])))
    return _Written([each.edit() for each in sections], cut)


def _members(lines: Sequence[str]) -> dict[str, str]:
    """What the lines before a change say of an edit; the last line is its title where nothing else is."""
    found: dict[str, str] = {}
    current = ""
    for line in lines:
        if given := _FIELD.match(line):
            current = given[1].lower().replace(" ", "_")
            found[current] = given[2].strip("* \t")
        elif heading := _HEADING.match(line):
            # The fields above the last heading belong to another edit.
            found, current = {"title": heading[1].strip("*#: \t")}, ""
        elif current and line.strip():
            found[current] += " " + line.strip()
        else:
            current = ""
    return found


def _ended(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _is_source(text: str) -> bool:
    return any(language.mark in text for language in SOURCE_LANGUAGES)
