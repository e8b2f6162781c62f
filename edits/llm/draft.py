"""An edit as a reply words it: nothing of it is checked against the kernel yet."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from dataclasses import dataclass

from mctskernel.core.edit import Category, Patch, WholeSource
from mctskernel.core.proposer import Dropped

MAX_TITLE = 120
MAX_PROSE = 1000
"""Characters."""

MAX_MATCHED_CATEGORY = 60


@dataclass(frozen=True)
class Draft:
    """What a reply says of one edit, as it says it. Of two `changes` the second stands in for the first.

    `prior` is None where none is given. `file` is the name of the file that the change is said to be for.
    """

    category: str = ""
    title: str = ""
    rationale: str = ""
    expected_effect: str = ""
    prior: float | None = None
    changes: tuple[Patch | WholeSource, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Drafts:
    """The edits that a reply words, and what it words badly, in order.

    `cut` says that the reply ends in the middle of something, `vacant` that it lists edits and the list is empty.
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
    """The number that a prior is given by, as a number, a percentage or a word; None where it says nothing."""
    if isinstance(value, str):
        text = value[:40].strip().lower()
        if text in _LIKELIHOODS:
            return _LIKELIHOODS[text]
        number = re.match(r"\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}", text)
        if number is None:
            return None
        value = float(number[0]) * (0.01 if "%" in text else 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        value = max(-1, min(value, 1000))
    return float(value) if math.isfinite(value) else None


def category_of(category: str, title: str) -> Category:
    """The category that a reply means: by its name, by words that it shares with one, or by those of the title."""
    name = _plain(category[:MAX_MATCHED_CATEGORY])
    if name in _NAMES:
        return _NAMES[name]
    for text in (name, _plain(title[:MAX_TITLE])):
        for words, meant in _WORDS:
            if words.search(text):
                return meant
    close = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.75)
    return _NAMES[close[0]] if close else Category.ALGORITHM


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


_LIKELIHOODS = {"very high": 0.9, "high": 0.75, "medium": 0.5, "moderate": 0.5, "low": 0.25, "very low": 0.1}

_NAMES = {
    **{_plain(category.value): category for category in Category},
    **{_plain(category.name): category for category in Category},
}

# The first that is found decides: what is particular stands before what is general.
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
