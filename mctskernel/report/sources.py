"""Sources as highlighted lines: every line is kept once, and a source is the numbers of its lines."""

from __future__ import annotations

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

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, by number."""
        return tuple(self._numbers)

    def add(self, text: str, language: Language) -> tuple[int, ...]:
        """The numbers of a source's lines."""
        return tuple(
            self._numbers.setdefault(line, len(self._numbers)) for line in highlighted(text, language)
        )


def highlighted(text: str, language: Language) -> Iterator[Line]:
    """The lines of a source, without their ends, as tokens. What the tokens hold is text, never markup."""
    line: list[str] = []
    for kind, value in _lexer(language).get_tokens(text):
        name = _short_name(kind)
        first, *others = value.split("\n")
        _extend(line, name, first)
        for other in others:
            yield tuple(line)
            line = []
            _extend(line, name, other)
    if line:
        yield tuple(line)


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
