"""Texts and bytes from outside, read within bounds: one place for what TOML and msgspec do to whoever is careless.

Both raise more than they say: of a number of thousands of digits ValueError, of deep nesting RecursionError, of text
that isn't UTF-8 UnicodeDecodeError. And a dotted key takes quadratic time, of which a plan had room for a second.
"""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec

MAX_CHARACTERS = 1 << 18
"""Of a TOML document; the largest that this program writes has a few thousand."""

MAX_STOPS = 256
"""Full stops in a line, which is where a dotted key has to be."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError)
"""What msgspec raises for input that is no value of the type, whatever the bytes or the text."""


MOST_TOLD = 400
"""Characters of what msgspec or a parser says, which may quote all of a long input."""


def excerpt(error: Exception) -> str:
    """What an error says, as much of it as belongs into a sentence."""
    text = str(error)
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}..."


class DocumentError(ValueError):
    """A text that is no document; the message ends a sentence that begins with what the text is."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document. Raises DocumentError for any other text, in time linear in its length."""
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(f"has {len(text)} characters; the limit is {MAX_CHARACTERS}")
    if any(line.count(".") > MAX_STOPS for line in text.split("\n")):
        raise DocumentError(f"has a line with more than {MAX_STOPS} full stops")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise DocumentError("is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"is not valid TOML: {error}") from error
