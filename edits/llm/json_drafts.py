"""Edits that a reply words in JSON: alone, in prose or in a fence; by the schema or nearly so; whole or cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mctskernel.core.edit import Block, Patch, WholeSource
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.draft import MAX_TITLE, Draft, Drafts, one_line, prior_of
from mctskernel.edits.llm.prose_drafts import patch_in, unfenced
from mctskernel.edits.llm.tolerant_json import Torn, read_json

MAX_VALUES = 200
"""JSON values that one reply is searched for."""

MAX_LISTED = 1000
"""Entries of a list that are looked at."""

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "edits": ("edits", "edit", "proposals", "proposed_edits", "suggestions", "candidates", "optimizations"),
    "category": ("category", "type", "kind"),
    "title": ("title", "name", "summary"),
    "rationale": ("rationale", "reason", "reasoning", "why", "explanation", "description"),
    "expected_effect": ("expected_effect", "effect", "expected", "expected_impact", "impact"),
    "prior": ("prior", "probability", "confidence", "promise", "likelihood"),
    "patch": ("patch", "patches", "blocks", "changes", "diff", "edits", "search_replace"),
    "source": ("source", "code", "kernel", "new_source", "full_source", "whole_source", "source_code"),
    "file": ("file", "filename", "path", "file_path"),
    "search": ("search", "find", "old", "before", "original", "old_text", "old_string"),
    "replace": ("replace", "replacement", "new", "after", "updated", "new_text", "new_string"),
}
_names = {name for names in _SYNONYMS.values() for name in names}
_OPENING = re.compile(
    r"(?:\[\s*+)?\{(?:\s|//[^\n]*|/\*[^*]{0,200}\*/)*+[\"'`]?(?:"
    + "|".join(sorted(_names))
    + r")[\"'`]?\s*+:",
    re.IGNORECASE,
)


def drafts_in_json(text: str) -> Drafts:
    """The edits of every JSON value in a text that looks like one or a list of them."""
    found: list[Draft | Dropped] = []
    cut = vacant = False
    position = 0
    for _ in range(MAX_VALUES):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        read = read_json(text, opening.start())
        found += _edits(read.value, depth=0)
        vacant = vacant or _is_vacant(read.value)
        position = max(read.end, opening.start() + 1)
        cut = _loses(read.value) and not text[position:].strip()
    return Drafts(tuple(found), cut, vacant)


def _edits(value: object, depth: int) -> Iterator[Draft | Dropped]:
    value = value.value if isinstance(value, Torn) else value
    if depth > 4:
        return
    if isinstance(value, list):
        for item in value[:MAX_LISTED]:
            if isinstance(item, dict | list | Torn):
                yield from _edits(item, depth + 1)
            else:
                yield Dropped(Loss.WRONG_SCHEMA, f"An edit is {type(item).__name__}, not an object.")
    elif isinstance(value, dict):
        members = {_folded(name): member for name, member in list(value.items())[:MAX_LISTED]}
        if _is_edit(members):
            drafted = _draft(members)
            if drafted is not None:
                yield drafted
            return
        for member in members.values():
            if isinstance(member, dict | list | Torn):
                yield from _edits(member, depth + 1)


def _is_edit(members: Mapping[str, object]) -> bool:
    if isinstance(_whole(_member(members, "patch")), list) and "edits" in members:
        # A list named `edits` is a patch where its items are blocks, and edits otherwise.
        items = _whole(members["edits"])
        return isinstance(items, list) and any(_block(item) is not None for item in items[:1])
    return any(
        _member(members, field) is not None for field in ("title", "category", "patch", "source", "search")
    )


def _draft(members: Mapping[str, object]) -> Draft | Dropped | None:
    """The edit; None where it is cut off before its change is whole."""
    title = _text(_member(members, "title"))
    patch, source = _member(members, "patch"), _member(members, "source")
    if patch is None and _member(members, "search") is not None:
        patch = [dict(members)]
    changes = (_patch(patch), _source(source))
    made = tuple(change for change in changes if change is not None)
    if not made:
        if any(isinstance(member, Torn) for member in members.values()):
            return None
        named = f"The edit '{one_line(title, MAX_TITLE)}'"
        fault = (
            "has a patch that isn't a list of {search, replace}" if patch else "has neither patch nor source"
        )
        return Dropped(Loss.WRONG_SCHEMA, f"{named} {fault}.")
    return Draft(
        _text(_member(members, "category")),
        title,
        _text(_member(members, "rationale")),
        _text(_member(members, "expected_effect")),
        prior_of(_member(members, "prior")),
        made,
        _text(_member(members, "file")),
    )


def _patch(value: object) -> Patch | None:
    """A patch that is whole, in any of its forms."""
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    if isinstance(value, str):
        return patch_in(value)
    if not isinstance(value, list) or not value:
        return None
    blocks = [_block(item) for item in value[:MAX_LISTED]]
    whole = tuple(block for block in blocks if block is not None)
    return Patch(whole) if len(whole) == len(value) else None


def _block(value: object) -> Block | None:
    if not isinstance(value, dict):
        return None
    members = {_folded(name): member for name, member in value.items()}
    search, replace = (_lines(_member(members, name)) for name in ("search", "replace"))
    if search is None or (replace is None and _named(members, "replace") is None):
        return None
    return Block(search, replace or "") if not isinstance(_member(members, "replace"), Torn) else None


def _source(value: object) -> Patch | WholeSource | None:
    text = _lines(value)
    if text is None or not text.strip():
        return None
    return patch_in(text) or WholeSource(unfenced(text))


def _lines(value: object) -> str | None:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _text(value: object) -> str:
    value = _whole(value)
    if isinstance(value, list):
        return " ".join(item for item in value[:MAX_LISTED] if isinstance(item, str))
    return str(value) if isinstance(value, str | float) else ""


def _whole(value: object) -> object:
    return value.value if isinstance(value, Torn) else value


def _named(members: Mapping[str, object], field: str) -> str | None:
    return next((name for name in _SYNONYMS[field] if name in members), None)


def _member(members: Mapping[str, object], field: str) -> object:
    """The first member of a field's names that isn't null."""
    return next((members[name] for name in _SYNONYMS[field] if members.get(name) is not None), None)


def _folded(name: str) -> str:
    """`expectedEffect`, `Expected effect` and `expected-effect` are `expected_effect`."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:60])
    return re.sub(r"[\s-]+", "_", spaced.strip()).lower()


def _is_vacant(value: object) -> bool:
    if isinstance(value, dict):
        return any(
            _folded(name) in _SYNONYMS["edits"] and member in ([], None) for name, member in value.items()
        )
    return False


def _loses(value: object) -> bool:
    """Whether what is torn off may have held edits: all but the closing brackets behind them."""
    if not isinstance(value, Torn):
        return False
    inner = value.value
    if isinstance(inner, dict):
        last = next(reversed(inner.values()), None)
        return not inner or isinstance(last, Torn) or not isinstance(last, list)
    return True
