"""A kernel: source text in a language, identified by the hash of its normalised text."""

from __future__ import annotations

import ast
import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from mctskernel.core.documents import members
from mctskernel.core.expression import ExpressionError, evaluate_int


class Language(enum.StrEnum):
    """A kernel's language: its suffix, its name in Markdown, what marks a kernel, and where the launch plan stands."""

    suffix: str
    markdown: str
    mark: str
    plan_place: str

    CUDA = "cuda", ".cu", "cuda", "__global__", "a leading /* ... */ comment"
    TRITON = "triton", ".py", "python", "@triton.jit", "a leading docstring"
    CONFIGURATION = "configuration", ".toml", "toml", "", ""
    """Values of the parameters of a search-space cache: nothing that could be built."""

    def __new__(
        cls, value: str, suffix: str = "", markdown: str = "", mark: str = "", plan_place: str = ""
    ) -> Language:
        """A member whose value is its name for users."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.suffix, member.markdown, member.mark, member.plan_place = suffix, markdown, mark, plan_place
        return member


SOURCE_LANGUAGES = (Language.CUDA, Language.TRITON)
"""Those that a compiler reads."""


def language_of(file: Path) -> Language | None:
    """Return the language of a file with a kernel, by its suffix."""
    return next((each for each in SOURCE_LANGUAGES if each.suffix == file.suffix), None)


@dataclass(frozen=True)
class Kernel:
    """One version of a kernel, its launch plan included (in the leading comment or docstring)."""

    source: str
    language: Language = Language.CUDA

    @cached_property
    def identity(self) -> str:
        """64 hexadecimal digits; equal for texts that differ only in comments, blank lines or spacing."""
        normalised = f"{self.language}\n{_normalise(self.source, self.language)}"
        return hashlib.sha256(normalised.encode()).hexdigest()

    @cached_property
    def macros(self) -> Mapping[str, int]:
        """Named whole numbers in order of definition: `#define TILE 16` in CUDA C++, `TILE = 16` in Triton."""
        if self.language is Language.CONFIGURATION:
            return {}
        return _macros(self.source) if self.language is Language.CUDA else _constants(self.source)

    @cached_property
    def settings(self) -> Mapping[str, float | str]:
        """What the text decides by name: its macros or, of a configuration, every parameter (booleans as 0 and 1)."""
        if self.language is not Language.CONFIGURATION:
            return self.macros
        return {
            name: value if isinstance(value, str) else +value
            for name, value in members(self.source).items()
            if isinstance(value, int | float | str)
        }


# A string or character literal, a comment, or the leading plan comment is one token. An unclosed comment reaches
# to the end, and no literal begins at an escaped quote: otherwise hostile texts would take quadratic time.
_CUDA_TOKENS = re.compile(
    r'(?<!\\)"(?:\\.|[^"\\\n])*"|(?<!\\)\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL
)
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$", re.MULTILINE)


def leading_comment(source: str) -> tuple[int, int] | None:
    """Start and end offsets of the text inside a CUDA source's first `/* ... */`, when it leads the file."""
    match = re.match(r"\s*/\*(.*?)\*/", source, re.DOTALL)
    return match.span(1) if match else None


def leading_docstring(source: str) -> tuple[int, int] | None:
    """Start and end offsets of the text inside a Triton module's first string, when it leads the file."""
    match = re.match(r'\s*[rR]?"""(.*?)"""', source, re.DOTALL)
    return match.span(1) if match else None


def _normalise(source: str, language: Language) -> str:
    if language is Language.TRITON:
        statements = _statements(source)
        return source if statements is None else "\n".join(each.text for each in statements)
    source = source.replace("\r\n", "\n")
    if language is Language.CONFIGURATION:
        lines = [line.strip() for line in source.split("\n")]
        return "\n".join(line for line in lines if line and not line.startswith("#"))
    span = leading_comment(source)
    plan, body = (source[span[0] : span[1]], source[span[1] + 2 :]) if span else ("", source)
    # Spaces in string literals become characters that no source holds, so that spacing rules spare them.
    kept = _CUDA_TOKENS.sub(
        lambda token: token[0].replace(" ", "\0").replace("\t", "\1"), _without_comments(body)
    )
    lines = f"{plan}\n{kept}".split("\n")
    return "\n".join(text for line in lines if (text := " ".join(line.split())))


@lru_cache(maxsize=64)
def _without_comments(source: str) -> str:
    return _CUDA_TOKENS.sub(lambda token: " " if token[0].startswith("/") else token[0], source)


@lru_cache(maxsize=512)
def _macros(source: str) -> Mapping[str, int]:
    values: dict[str, int] = {}
    texts: dict[str, str] = {}
    for match in _DEFINE.finditer(_without_comments(source)):
        name, text = match[1], match[2].strip()
        # Text and not values replace names, as in C: with `#define A 1 + 1`, `A * 3` is 1 + 1 * 3.
        text = _NAME.sub(lambda word: texts.get(word[0], word[0]), text)
        try:
            values[name], texts[name] = evaluate_int(text, {}), text
        except ExpressionError:
            values.pop(name, None)
            texts.pop(name, None)
    return values


@dataclass(frozen=True)
class _Statement:
    """A statement of a Triton module as `ast` writes it, and the value that it assigns to a name, if it does."""

    text: str
    name: str = ""
    value: str = ""


_PARTS = re.compile(r"\n\n(?=[^\s#])")


def _statements(source: str) -> tuple[_Statement, ...] | None:
    """The statements of a Triton module, or None where it has no syntax tree.

    Versions of a kernel share most of their text, so the parts after its launch plan are read one by one, and
    remembered. Where each of them can be parsed, no string and no bracket reaches from one into another.
    """
    plan = leading_docstring(source)
    head = plan[1] + 3 if plan else 0
    found: list[_Statement] = []
    for part in (source[:head], *_PARTS.split(source[head:])):
        statements = _read(part)
        if statements is None:
            return _read(source)
        found += statements
    return tuple(found)


@lru_cache(maxsize=1024)
def _read(source: str) -> tuple[_Statement, ...] | None:
    # Parsing goes deeper than writing does, and Python writes no number of very many digits.
    try:
        return tuple(map(_statement, ast.parse(source).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statement(node: ast.stmt) -> _Statement:
    text = ast.unparse(node)
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            pass
        case _:
            return _Statement(text)
    match value:
        case ast.Call(func=ast.Attribute(attr="constexpr"), args=[wrapped]):
            value = wrapped
    return _Statement(text, name, ast.unparse(value))


def _constants(source: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for statement in _statements(source) or ():
        if statement.name:
            try:
                values[statement.name] = evaluate_int(statement.value, values)
            except ExpressionError:
                values.pop(statement.name, None)
    return values
