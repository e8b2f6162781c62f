"""Sources as highlighted lines: every line is kept once, and a source is the numbers of its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache

from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, PythonLexer, TextLexer
from pygments.token import STANDARD_TYPES, _TokenType

from mctskernel.core.kernel import Language

Line = tuple[str, ...]
"""A line as pairs of a class, Pygments' short name of the token's type or empty, and text, one after another."""

Change = tuple[int, int, int, int]
"""Lines from, to in the old source that lines from, to in the new one replace."""


class Sources:
    """Highlighted lines, each once, and sources as numbers of lines."""

    def __init__(self) -> None:
        self._numbers: dict[Line, int] = {}
        self._pieces: dict[tuple[Language, str], tuple[int, ...]] = {}

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, by number."""
        return tuple(self._numbers)

    def add(self, text: str, language: Language) -> tuple[int, ...]:
        """The numbers of a source's lines."""
        return tuple(
            number for piece in pieces(text, language) for number in self._highlighted(piece, language)
        )

    def _highlighted(self, piece: str, language: Language) -> tuple[int, ...]:
        # Most of a kernel is as it was in its parent, and Pygments takes half a millisecond a line.
        if (language, piece) not in self._pieces:
            found = highlighted(piece, language)
            self._pieces[language, piece] = tuple(
                self._numbers.setdefault(line, len(self._numbers)) for line in found
            )
        return self._pieces[language, piece]


def pieces(text: str, language: Language) -> Iterator[str]:
    """A source cut into lines, without their ends; lines that a comment or a string spans stay together."""
    if not text:
        return
    body, spans = text.removesuffix("\n"), _SPANS.get(language)
    crossed = {
        at
        for match in (spans.finditer(body) if spans else ())
        for at in range(match.start(), match.end())
        if body[at] == "\n"
    }
    start = 0
    for match in re.finditer("\n", body):
        if match.start() not in crossed:
            yield body[start : match.start()]
            start = match.end()
    yield body[start:]


def highlighted(text: str, language: Language) -> Iterator[Line]:
    """The lines of a text, without their ends, as tokens. What the tokens hold is text, never markup."""
    line: list[str] = []
    # A comment that runs to the end of its line is one only where there is such an end.
    for kind, value in _lexer(language).get_tokens(f"{text}\n"):
        name = _short_name(kind)
        first, *others = value.split("\n")
        _extend(line, name, first)
        for other in others:
            yield tuple(line)
            line = []
            _extend(line, name, other)


def changes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[Change, ...]:
    """The changes that make the new source of the old one."""
    start = next(
        (at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    most = min(len(old), len(new)) - start
    end = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    # What both begin and end with is most of them, and the matcher's time grows with the square of the rest.
    matcher = SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False)
    return tuple(
        (a0 + start, a1 + start, b0 + start, b1 + start)
        for tag, a0, a1, b0, b1 in matcher.get_opcodes()
        if tag != "equal"
    )


_STRINGS = r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*\""""

_SPANS = {
    Language.CUDA: re.compile(rf"//[^\n]*|{_STRINGS}|/\*.*?(?:\*/|\Z)", re.DOTALL),
    Language.TRITON: re.compile(
        rf"#[^\n]*|(?P<quotes>\"{{3}}|'{{3}}).*?(?:(?P=quotes)|\Z)|{_STRINGS}", re.DOTALL
    ),
}
"""Comments and strings: those that hold a line's end can't be highlighted line by line."""


def _extend(line: list[str], name: str, text: str) -> None:
    if not text:
        return
    if len(line) > 1 and line[-2] == name:
        line[-1] += text
    else:
        line += [name, text]


@cache
def _lexer(language: Language) -> Lexer:
    lexers = {Language.CUDA: CudaLexer, Language.TRITON: PythonLexer}
    return lexers.get(language, TextLexer)(stripnl=False, ensurenl=False)


@cache
def _short_name(kind: _TokenType) -> str:
    """The class that Pygments' style sheets have for a type or the nearest one above it; none for plain text."""
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    name = STANDARD_TYPES[kind]
    return "" if name in {"n", "w", "p"} else name
