"""The JSON schema of a reply that proposes edits, for servers that hold a model to one."""

from __future__ import annotations

from collections.abc import Mapping

from mctskernel.core.edit import Category

_TEXT = {"type": "string"}


def _closed(properties: dict[str, object], description: str = "") -> dict[str, object]:
    """An object with these properties, all of them and no others, as strict modes ask for."""
    described = {"description": description} if description else {}
    return {
        "type": "object",
        **described,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_BLOCK = _closed(
    {
        "search": {**_TEXT, "description": "Whole lines of the source, verbatim, that occur in it once."},
        "replace": {**_TEXT, "description": "What takes their place."},
    }
)

# Bounds such as `minimum` are said in words: not every server takes them, and some refuse a schema that has them. The
# reasons come first, because a model writes the properties in this order.
_EDIT = _closed(
    {
        "rationale": {**_TEXT, "description": "Why this helps this kernel, from its evidence."},
        "category": {**_TEXT, "enum": [str(category) for category in Category]},
        "title": {**_TEXT, "description": "What is done, in one line."},
        "expected_effect": {
            **_TEXT,
            "description": "What becomes how much better, and what may become worse.",
        },
        "prior": {
            "type": "number",
            "description": "The probability, from 0 to 1, that the kernel gets faster.",
        },
        "patch": {
            "anyOf": [{"type": "array", "items": _BLOCK}, {"type": "null"}],
            "description": "The change, applied block by block; null where `source` is given.",
        },
        "source": {
            "anyOf": [_TEXT, {"type": "null"}],
            "description": "The whole new source, launch plan included, where little of the old one stays; else null.",
        },
    }
)

EDITS_SCHEMA: Mapping[str, object] = _closed({"edits": {"type": "array", "items": _EDIT}})
"""A reply that proposes edits: every property required and no others allowed, as strict structured output needs."""

_VERDICT = _closed(
    {
        "edit": {"type": "integer", "description": "The edit's number."},
        "reason": {**_TEXT, "description": "Why, in one sentence."},
        "promise": {
            "type": "number",
            "description": "The probability, from 0 to 1, that the kernel gets faster.",
        },
    }
)

VERDICTS_SCHEMA: Mapping[str, object] = _closed(
    {
        "bottleneck": {**_TEXT, "description": "What binds the kernel, in one sentence."},
        "verdicts": {"type": "array", "items": _VERDICT},
    }
)
"""A reply that judges edits."""

_MAYBE = {"anyOf": [_TEXT, {"type": "null"}]}

DRAFT_SCHEMA: Mapping[str, object] = _closed(
    {
        "reference": {**_MAYBE, "description": "The whole reference.py; null where it is given."},
        "task": {**_MAYBE, "description": "The whole task.toml; null where it is given."},
    }
)
"""A reply that states a task."""
