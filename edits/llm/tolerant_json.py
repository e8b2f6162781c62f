"""JSON as models write it: with comments, stray commas, raw line feeds, quotes that aren't escaped, and cut off.

Repairing libraries close what was cut off and end a string at the first quote that isn't escaped, without a word: of a
kernel they return half, as if it were whole. This reader says what is torn (`Torn`), and reads each character a bounded
number of times, to a bounded depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_DEPTH = 32


@dataclass(frozen=True)
class Torn:
    """A value that the text ended in, or that nested too deep: what there is of it."""

    value: object


@dataclass(frozen=True)
class Read:
    """A value and the offset behind it."""

    value: object
    end: int


def read_json(text: str, start: int = 0) -> Read:
    """The value that begins at an offset; what follows it is not looked at. Objects are dicts, arrays lists."""
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        reader = _Reader(text, start)
        value = reader.value(_ends_top, depth=0)
        end = reader.position
    return Read(value, end)


# Line feeds and tabs in strings are taken as they are.
_STRICT = json.JSONDecoder(strict=False)

_BLANK = re.compile(r"(?:[\s,;]|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z))*+", re.DOTALL)
_SPACE = re.compile(r"(?:\s|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z))*+", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w-]{0,40}")
_SCALAR = re.compile(r"[^\s,;:\[\]{}\"'`]+")
_QUOTE = re.compile(r'"""|["\'`]')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})(?:\\u([dD][c-fC-F][0-9a-fA-F]{2}))?|(.))", re.DOTALL)
_ESCAPED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "`": "`",
}
_WORDS = {"true": True, "false": False, "null": None, "none": None, "undefined": None}

# What has to follow a quote for it to end a string: anything else, and it is part of the text.
_GAP = r"(?:\s|/\*[^*]{0,200}\*/)*+"
_MEMBER = r"""(?:["'`][A-Za-z_][\w-]{0,40}["'`]|[A-Za-z_][\w-]{0,40})\s*+:"""
_ends_key = re.compile(r"\s*+:").match
_ends_member = re.compile(
    rf"{_GAP}(?:\Z|\}}{_GAP}(?:[,\]}}]|```|\Z)|,{_GAP}(?:\Z|\}}|//|{_MEMBER})|\s{_MEMBER})"
).match
_ends_item = re.compile(rf"""{_GAP}(?:\Z|\]|,{_GAP}(?:\Z|["'`\]{{\[]|//))""").match
_ends_top = re.compile(r"").match

_Ends = Callable[[str, int], "re.Match[str] | None"]


class _Reader:
    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def value(self, ends: _Ends, depth: int) -> object:
        """The value at the position, which moves behind it. `ends` says where a string may end."""
        opening = self.text[self.position : self.position + 1]
        if not opening or depth > MAX_DEPTH:
            return Torn(None)
        if opening == "{":
            return self._object(depth)
        if opening == "[":
            return self._array(depth)
        if opening in "\"'`":
            return self._string(ends)
        return self._scalar()

    def _object(self, depth: int) -> object:
        members: dict[str, object] = {}
        self.position += 1
        while True:
            self._skip(_BLANK)
            match self.text[self.position : self.position + 1]:
                case "":
                    return Torn(members)
                case "}":
                    self.position += 1
                    return members
                case '"' | "'" | "`":
                    name = self._string(_ends_key)
                case _:
                    found = _NAME.match(self.text, self.position)
                    if found is None:
                        return Torn(members)
                    name, self.position = found[0], found.end()
            self._skip(_SPACE)
            if not isinstance(name, str) or self.text[self.position : self.position + 1] != ":":
                return Torn(members)
            self.position += 1
            self._skip(_SPACE)
            members[name] = self.value(_ends_member, depth + 1)
            if isinstance(members[name], Torn):
                return Torn(members)

    def _array(self, depth: int) -> object:
        items: list[object] = []
        self.position += 1
        while True:
            self._skip(_BLANK)
            match self.text[self.position : self.position + 1]:
                case "":
                    return Torn(items)
                case "]":
                    self.position += 1
                    return items
                case "}" | ":":
                    return Torn(items)
            items.append(self.value(_ends_item, depth + 1))
            if isinstance(items[-1], Torn):
                return Torn(items)

    def _string(self, ends: _Ends) -> object:
        opening = _QUOTE.match(self.text, self.position)
        quote = opening[0] if opening else ""
        if quote == '"""' and ends(self.text, self.position + 2):
            quote = '"'  # an empty string and the quote of what follows
        start = position = self.position + len(quote)
        pattern = _STOPS[quote]
        while (stop := pattern.search(self.text, position)) is not None:
            position = stop.end()
            if stop[0].startswith("\\"):
                continue
            if len(quote) > 1 or ends(self.text, position):
                self.position = position
                return _unescaped(self.text[start : stop.start()])
        self.position = len(self.text)
        return Torn(_unescaped(self.text[start:]))

    def _scalar(self) -> object:
        found = _SCALAR.match(self.text, self.position)
        if found is None:
            return Torn(None)
        self.position = found.end()
        word = found[0]
        if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        try:
            return float(word)
        except ValueError:
            return word

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()


_STOPS = {quote: re.compile(rf"\\.?|{quote}", re.DOTALL) for quote in ('"""', '"', "'", "`")}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    high, low, other = escape.groups()
    if high is None:
        # A backslash that escapes nothing was meant: it continues a macro, or a model forgot to double it.
        return _ESCAPED.get(other, escape[0])
    if low is not None and 0xD800 <= int(high, 16) < 0xDC00:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    return chr(int(high, 16)) + (chr(int(low, 16)) if low is not None else "")
