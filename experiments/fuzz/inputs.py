"""Inputs for fuzzing, as Hypothesis draws and shrinks them: examples that are cut, spliced, repeated and mis-spelled.

`docs/fuzzing.md` says why it is Hypothesis that draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

ODD_TEXTS = (
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\xef\xbb\xbf",  # a byte order mark
    "а".encode(),  # Cyrillic, and looks like Latin
    "ｇrid".encode(),  # full width
    "²".encode(),  # a digit to str.isdigit and to no int()
    "١".encode(),  # a digit to int() too
    "\u202e\u2028\x85".encode(),
    b"\r\n",
    b"\r",
    b"\t",
    b" ",
    b"\n",
    b"\\",
    b"\\u",
    b"\\ud800",
    b'"',
    b"'",
    b'"""',
    b"'''",
    b"`",
    b"```",
    b"/*",
    b"*/",
    b"//",
    b"#",
    b".",
    b",",
    b";",
    b":",
    b"=",
    b"-",
    b"%s{0}",
    b"../../../../etc/passwd",
    b"/dev/zero",
    b"__import__('os').system('id')",
)
ODD_NUMBERS = (
    b"0",
    b"-1",
    b"1e308",
    b"1e400",
    b"-inf",
    b"nan",
    b"NaN",
    b"Infinity",
    b"1e300",
    b"9223372036854775808",
    b"18446744073709551616",
    b"9" * 30,
    b"9" * 5000,
    b"0x" + b"f" * 40,
    b"1_0",
    b"true",
    b"null",
)
NESTED = (
    (b"[", b"]"),
    (b"{", b"}"),
    (b"(", b")"),
    (b'{"a":', b"}"),
    (b"<", b">"),
    (b"-", b""),
    (b"/*", b"*/"),
)
LARGEST = 1 << 20
"""Bytes that one mutation adds at the most."""

FOLDED = 20_000
"""How often something is repeated at the most, within the size that the target has."""

Mutation = tuple[str, int, int, int]


def inputs(examples: Sequence[bytes], words: Sequence[bytes], most: int) -> st.SearchStrategy[bytes]:
    """Mutated examples of at most so many bytes; `words` are what the format itself is made of."""
    tokens = (*words, *ODD_NUMBERS, *ODD_TEXTS)
    place = st.integers(0, 1 << 20)
    mutation = st.tuples(st.sampled_from(sorted(_MUTATIONS)), place, place, place)

    def mutated(start: int, mutations: list[Mutation]) -> bytes:
        data = examples[start]
        for kind, first, second, third in mutations:
            data = _MUTATIONS[kind](data, Chance((first, second, third), examples, tokens))[: 2 * most]
        return data[:most]

    whole = st.builds(mutated, st.integers(0, len(examples) - 1), st.lists(mutation, min_size=1, max_size=6))
    documents = [found for each in examples if (found := _document(each)) is not None]
    strategies = [
        whole,
        st.lists(st.sampled_from(tokens), max_size=40).map(b"".join).map(lambda each: each[:most]),
    ]
    if documents:
        strategies.append(_documents(documents).map(lambda each: each[:most]))
    return st.one_of(*strategies)


@dataclass(frozen=True)
class Chance:
    """What a mutation is made of: numbers that were drawn, other examples, and words."""

    numbers: tuple[int, int, int]
    examples: Sequence[bytes]
    tokens: Sequence[bytes]


_Change = Callable[[bytes, Chance], bytes]


def _cut(data: bytes, chance: Chance) -> bytes:
    start, end = _span(data, chance)
    return data[:start] + data[end:]


def _end(data: bytes, chance: Chance) -> bytes:
    return data[: chance.numbers[0] % (len(data) + 1)]


def _flip(data: bytes, chance: Chance) -> bytes:
    if not data:
        return data
    place = chance.numbers[0] % len(data)
    return data[:place] + bytes([data[place] ^ 1 << chance.numbers[1] % 8]) + data[place + 1 :]


def _insert(data: bytes, chance: Chance) -> bytes:
    place = chance.numbers[0] % (len(data) + 1)
    return data[:place] + chance.tokens[chance.numbers[1] % len(chance.tokens)] + data[place:]


def _replace_word(data: bytes, chance: Chance) -> bytes:
    """Something between blanks or punctuation becomes another token."""
    start = end = chance.numbers[0] % (len(data) + 1)
    while start and data[start - 1 : start].isalnum():
        start -= 1
    while end < len(data) and data[end : end + 1].isalnum():
        end += 1
    return data[:start] + chance.tokens[chance.numbers[1] % len(chance.tokens)] + data[end:]


def _repeat(data: bytes, chance: Chance) -> bytes:
    start, end = _span(data, chance)
    return data[:end] + data[start:end] * (chance.numbers[2] % 4) + data[end:]


def _repeat_line(data: bytes, chance: Chance) -> bytes:
    """The same key again, or the same table thousands of times."""
    lines = data.splitlines(keepends=True) or [b""]
    place = chance.numbers[0] % len(lines)
    often = min(_often(chance), LARGEST // max(1, len(lines[place])))
    return b"".join([*lines[:place], *lines[place : place + 1] * often, *lines[place:]])


def _fold(data: bytes, chance: Chance) -> bytes:
    """One token or two, over and over: what takes quadratic time, or a line without end."""
    place = chance.numbers[0] % (len(data) + 1)
    token = chance.tokens[chance.numbers[1] % len(chance.tokens)]
    if chance.numbers[2] % 3 == 0:
        token += chance.tokens[(chance.numbers[1] >> 7) % len(chance.tokens)]
    return data[:place] + token * min(_often(chance), LARGEST // len(token)) + data[place:]


def _nest(data: bytes, chance: Chance) -> bytes:
    place = chance.numbers[0] % (len(data) + 1)
    opening, closing = NESTED[chance.numbers[1] % len(NESTED)]
    often = _often(chance)
    return (
        data[:place] + opening * often + (closing * often if chance.numbers[1] & 256 else b"") + data[place:]
    )


def _splice(data: bytes, chance: Chance) -> bytes:
    other = chance.examples[chance.numbers[2] % len(chance.examples)]
    return data[: chance.numbers[0] % (len(data) + 1)] + other[chance.numbers[1] % (len(other) + 1) :]


_MUTATIONS: dict[str, _Change] = {
    change.__name__.lstrip("_"): change
    for change in (_cut, _end, _flip, _insert, _replace_word, _repeat, _repeat_line, _fold, _nest, _splice)
}


def _span(data: bytes, chance: Chance) -> tuple[int, int]:
    start = chance.numbers[0] % (len(data) + 1)
    return start, min(len(data), start + chance.numbers[1] % (64 if chance.numbers[2] % 4 else len(data) + 1))


def _often(chance: Chance) -> int:
    """Seldom thousands of times, mostly a few."""
    most = (3, 40, 1000, FOLDED)[chance.numbers[2] % 4]
    return 1 + (chance.numbers[2] >> 2) % most


_VALUES = st.sampled_from(
    [None, True, 0, -1, 10**30, 2**63, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "\0", "1" * 5000]
)
_ODD = st.recursive(
    _VALUES,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "time", ""]), inner, max_size=2)
    ),
    max_leaves=4,
)


def _document(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None


@st.composite
def _documents(draw: st.DrawFn, documents: Sequence[Any]) -> bytes:
    """JSON with values of other kinds in some places."""
    found = draw(st.sampled_from(documents))
    for _ in range(draw(st.integers(1, 3))):
        found = _changed(found, draw(st.lists(st.integers(0, 1 << 10), max_size=8)), draw(_ODD))
    return json.dumps(found).encode()


def _changed(found: Any, path: Sequence[int], value: Any) -> Any:
    if not path or not isinstance(found, dict | list) or not found:
        return value
    keys = list(found) if isinstance(found, dict) else list(range(len(found)))
    key = keys[path[0] % len(keys)]
    copy = dict(found) if isinstance(found, dict) else list(found)
    copy[key] = _changed(found[key], path[1:], value)
    return copy
