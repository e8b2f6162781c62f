"""What a reply is asked to look like (its JSON schema), and an edit as a reply describes it, not yet checked."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.edit import Category, Patch, WholeSource
from mctskernel.core.proposer import Dropped

MAX_TITLE = 120
MAX_PROSE = 1000
"""Characters."""

MAX_MATCHED_CATEGORY = 60


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
"""A reply with edits: every property required and no others allowed, as strict structured output needs."""

_MAYBE = {"anyOf": [_TEXT, {"type": "null"}]}

DRAFT_SCHEMA: Mapping[str, object] = _closed(
    {
        "reference": {**_MAYBE, "description": "The whole reference.py; null where it is given."},
        "task": {**_MAYBE, "description": "The whole task.toml; null where it is given."},
    }
)
"""A reply that states a task."""


@dataclass(frozen=True)
class Draft:
    """One edit as a reply describes it; `prior` is None where none is given."""

    change: Patch | WholeSource
    category: str = ""
    title: str = ""
    rationale: str = ""
    expected_effect: str = ""
    prior: float | None = None


@dataclass(frozen=True)
class Drafts:
    """The edits of a reply, and what of them can't be read, in order.

    `cut` says that the reply ends in the middle of something, `vacant` that its list of edits is empty.
    """

    found: tuple[Draft | Dropped, ...] = ()
    cut: bool = False
    vacant: bool = False

    @property
    def any_change(self) -> bool:
        """Whether any edit has a change."""
        return any(isinstance(item, Draft) for item in self.found)


def one_line(text: str, most: int) -> str:
    """A text on one line, without control or direction characters, cut to a number of characters."""
    words = text[: 8 * most].split()
    shown = ("".join(letter for letter in word if unicodedata.category(letter)[0] != "C") for word in words)
    line = " ".join(word for word in shown if word)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def prior_of(value: object) -> float | None:
    """A prior given as a number or a percentage; None for anything else."""
    if isinstance(value, str):
        number = re.match(r"\s*(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*(%?)", value)
        return float(number[1]) * (0.01 if number[2] else 1.0) if number else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    value = max(-1, min(value, 1000)) if isinstance(value, int) else value
    return float(value) if math.isfinite(value) else None


def category_of(category: str, title: str) -> Category:
    """The category that a reply means: by its name, else by words in it or in the title."""
    name = _plain(category[:MAX_MATCHED_CATEGORY])
    if name in _NAMES:
        return _NAMES[name]
    for text in (name, _plain(title[:MAX_TITLE])):
        for words, meant in _WORDS:
            if words.search(text):
                return meant
    return Category.ALGORITHM


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


_NAMES = {_plain(name): category for category in Category for name in (category.value, category.name)}

# The first that is found decides, so the particular comes before the general.
_WORDS = tuple(
    (re.compile(rf"\b(?:{words})"), category)
    for words, category in (
        (r"tensor core|wmma|mma\b|tl dot|hmma", Category.TENSOR_CORES),
        (r"cp async|async|double buffer|pipelin|prefetch|tma\b", Category.ASYNC_COPY),
        (r"bank conflict|swizzl|shared padding", Category.BANK_CONFLICTS),
        (r"warp (?:primitive|shuffle|reduc|level)|shuffle|shfl", Category.WARP_PRIMITIVES),
        (r"vectori|float4|float2|wide (?:load|store|access)", Category.VECTORIZATION),
        (r"coalesc|memory access pattern|layout", Category.COALESCING),
        (r"regist", Category.REGISTER_BLOCKING),
        (r"shared|tiling|tile|cach", Category.SHARED_TILING),
        (r"unroll|loop", Category.UNROLLING),
        (r"coarsen|work per thread|elements per thread", Category.COARSENING),
        (r"launch|block size|grid|num warps|occupan", Category.LAUNCH),
        (r"hint|restrict|pragma|compiler|ldg|launch bounds", Category.COMPILER_HINTS),
        (r"tun|autotun|parameter|constant", Category.TUNING),
        (r"precision|numeric|fast math|intrinsic|approx", Category.PRECISION),
        (r"fus|one pass|single pass", Category.FUSION),
        (r"parallel|split k|more blocks|work distribution", Category.PARALLELISM),
        (r"repair|fix|bug|correct", Category.REPAIR),
        (r"algorithm|online|recurrence", Category.ALGORITHM),
    )
)
