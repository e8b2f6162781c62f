"""Read edits in JSON: alone, in prose or in a fence, by the schema or nearly so, whole or cut off.

Each edit is decoded on its own where the list around it is cut off or broken. Nothing is repaired: libraries that do
close what was cut off, and of a kernel they would return half as if it were whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from mctskernel.core.edit import Block, Patch, WholeSource
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.llm.reply_format import MAX_TITLE, Draft, Drafts, one_line, prior_of
from mctskernel.edits.llm.reply_prose import patch_in, unfenced

MAX_VALUES = 200
"""JSON values that one reply is searched for."""

MAX_LISTED = 1000
"""Entries of a list that are looked at."""

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "edits": ("edits", "proposals", "suggestions"),
    "category": ("category", "type", "kind"),
    "title": ("title", "name", "summary"),
    "rationale": ("rationale", "reason", "reasoning", "explanation", "description"),
    "expected_effect": ("expected_effect", "effect", "expected_impact", "impact"),
    "prior": ("prior", "probability", "confidence"),
    "patch": ("patch", "blocks", "changes", "diff"),
    "source": ("source", "code", "kernel", "new_source"),
    "search": ("search", "find", "old", "before"),
    "replace": ("replace", "replacement", "new", "after"),
}
_NAMES = "|".join(sorted(name for names in _SYNONYMS.values() for name in names))
_OPENING = re.compile(rf'(?:\[\s*+)?\{{\s*+"(?:{_NAMES})"\s*+:', re.IGNORECASE)

# Line feeds and tabs in strings are taken as they are.
_DECODER = json.JSONDecoder(strict=False)


def drafts_in_json(text: str) -> Drafts:
    """The edits of every JSON value in a text that looks like one or a list of them."""
    found: list[Draft | Dropped] = []
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
            read = list(_edits(value, depth=0))
            found += read
            is_whole = isinstance(value, list) and bool(read)
            vacant = vacant or _is_vacant(value)
    cut = broken is not None and _ran_out(broken, text) and not is_whole
    if broken is not None and not cut and not found:
        found.append(Dropped(Loss.WRONG_SCHEMA, f"The JSON can't be read: {one_line(str(broken), 200)}."))
    return Drafts(tuple(found), cut, vacant)


def _ran_out(error: ValueError | RecursionError, text: str) -> bool:
    """Whether the text ended within a value."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    # A name, a number or an escape that is cut off is an error where it begins.
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()) - len("undefined")


def _edits(value: object, depth: int) -> Iterator[Draft | Dropped]:
    if depth > 4:
        return
    if isinstance(value, list):
        for item in value[:MAX_LISTED]:
            if isinstance(item, dict | list):
                yield from _edits(item, depth + 1)
            else:
                yield Dropped(Loss.WRONG_SCHEMA, f"An edit is {type(item).__name__}, not an object.")
    elif isinstance(value, dict):
        members = {_folded(name): member for name, member in list(value.items())[:MAX_LISTED]}
        if any(_member(members, field) is not None for field in ("title", "category", "patch", "source")):
            yield _draft(members)
            return
        for member in members.values():
            if isinstance(member, dict | list):
                yield from _edits(member, depth + 1)


def _draft(members: Mapping[str, object]) -> Draft | Dropped:
    title = _text(_member(members, "title"))
    patch = _member(members, "patch")
    change = _source(_member(members, "source")) or _patch(patch)
    if change is None:
        fault = (
            "has a patch that isn't a list of {search, replace}" if patch else "has neither patch nor source"
        )
        return Dropped(Loss.WRONG_SCHEMA, f"The edit '{one_line(title, MAX_TITLE)}' {fault}.")
    return Draft(
        change,
        _text(_member(members, "category")),
        title,
        _text(_member(members, "rationale")),
        _text(_member(members, "expected_effect")),
        prior_of(_member(members, "prior")),
    )


def _patch(value: object) -> Patch | None:
    """A patch as a list of blocks, one block, or a text; None for anything else."""
    if isinstance(value, str):
        return patch_in(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        return None
    blocks = [_block(item) for item in value[:MAX_LISTED]]
    whole = tuple(block for block in blocks if block is not None)
    return Patch(whole) if len(whole) == len(value) else None


def _block(value: object) -> Block | None:
    if not isinstance(value, dict):
        return None
    members = {_folded(name): member for name, member in value.items()}
    search, replace = _member(members, "search"), _member(members, "replace")
    return Block(search, replace) if isinstance(search, str) and isinstance(replace, str) else None


def _source(value: object) -> Patch | WholeSource | None:
    if not isinstance(value, str) or not value.strip():
        return None
    return patch_in(value) or WholeSource(unfenced(value))


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | float) else ""


def _member(members: Mapping[str, object], field: str) -> object:
    """The first member of a field's names that isn't null."""
    return next((members[name] for name in _SYNONYMS[field] if members.get(name) is not None), None)


def _folded(name: str) -> str:
    """`expectedEffect`, `Expected effect` and `expected-effect` are `expected_effect`."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:60])
    return re.sub(r"[\s-]+", "_", spaced.strip()).lower()


def _is_vacant(value: object) -> bool:
    return isinstance(value, dict) and any(
        _folded(name) in _SYNONYMS["edits"] and not member for name, member in value.items()
    )
