"""Two kernels of a run side by side, line by line: highlighted for a terminal, a unified diff elsewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mctskernel.core.kernel import Language
from mctskernel.edits.patch import unified_diff
from mctskernel.profiling.changes import compare
from mctskernel.profiling.quantities import time_text
from mctskernel.report.view import View
from mctskernel.tree.node import Node
from mctskernel.tree.trajectory import edit_title, run_seconds

THEME = "monokai"
"""It brings its own background, so that what is added and removed can be told on any terminal."""

LEXERS = {Language.CUDA: "cuda", Language.TRITON: "python", Language.CONFIGURATION: "toml"}

ALIKE = 0.5
"""The share of two lines' text that has to be common before one counts as the other, changed."""

CONTEXT = 3
"""Unchanged lines around what changed."""


@dataclass(frozen=True)
class Line:
    """A line of a diff: its numbers, from 1, in the text before and after, None where it isn't there.

    `changed` are spans of its text, start and end, that differ from the line that it replaces or is replaced by.
    """

    before: int | None
    after: int | None
    text: str
    changed: tuple[tuple[int, int], ...] = ()


Hunk = tuple[Line, ...]


def hunks(before: str, after: str, context: int = CONTEXT) -> Iterator[Hunk]:
    """What changed between two texts, with unchanged lines around it; nothing for equal texts."""
    old, new = _lines(before), _lines(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        lines: list[Line] = []
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += [Line(i + n + 1, k + n + 1, text) for n, text in enumerate(old[i:j])]
            else:
                lines += _replaced(old[i:j], new[k:m], i + 1, k + 1)
        yield tuple(lines)


@dataclass(frozen=True)
class Compared:
    """Two nodes of a run. `relation` says what the first is to the second, empty for nothing in particular."""

    view: View
    before: int
    after: int
    relation: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Their sources. Raises BlobError."""
        return self.view.source(self.before), self.view.source(self.after)


def print_diff(console: Console, compared: Compared, context: int = CONTEXT) -> None:
    """What became of one node's kernel in another's: time, counts, and the lines, highlighted."""
    for line, style in _heading(compared):
        console.print(Text(line, style), soft_wrap=True)
    texts = compared.texts
    language = compared.view.node(compared.after).kernel.language
    old, new = (_highlighted(text, language) for text in texts)
    for number, hunk in enumerate(hunks(*texts, context)):
        if number:
            console.print(Text("⋯", "dim"))
        console.print(_table(hunk, old, new))


def plain_diff(compared: Compared, context: int = CONTEXT) -> str:
    """The same as a unified diff with a heading, which `patch` takes."""
    heading = "".join(f"{line}\n" for line, _ in _heading(compared))
    return heading + unified_diff(*compared.texts, context=context)


def _heading(compared: Compared) -> Iterator[tuple[str, str]]:
    """Lines and their styles: who is compared, and what happened to the time and to what is behind it."""
    view = compared.view
    old, new = view.node(compared.before), view.node(compared.after)
    yield f"--- {_title(view, old)}{f', the {compared.relation}' if compared.relation else ''}", "bold red"
    yield f"+++ {_title(view, new)}", "bold green"
    found = compare(old.evaluation, new.evaluation) if old.evaluation and new.evaluation else None
    for sentence in found.sentences if found else ():
        yield f"~ {sentence}", "cyan"
    if old.kernel.source == new.kernel.source:
        yield "The two are the same text.", ""


def _title(view: View, node: Node) -> str:
    """A node by its number, its edit, and what came of it."""
    evaluation = node.evaluation
    state = str(evaluation.outcome) if evaluation else "in flight"
    if evaluation and (seconds := run_seconds(evaluation)):
        state = f"{time_text(seconds)} {evaluation.source}"
    return f"node {node.id}: {' '.join(edit_title(view.tree, node).split())} ({state})"


def _replaced(old: Sequence[str], new: Sequence[str], first_old: int, first_new: int) -> list[Line]:
    """Lines that went, then those that came; where both are as many, each with what differs in it."""
    spans = [_changes(*pair) for pair in zip(old, new, strict=True)] if len(old) == len(new) else []
    gone = [spans[n][0] if spans else () for n in range(len(old))]
    come = [spans[n][1] if spans else () for n in range(len(new))]
    return [
        *(Line(first_old + n, None, text, gone[n]) for n, text in enumerate(old)),
        *(Line(None, first_new + n, text, come[n]) for n, text in enumerate(new)),
    ]


Spans = tuple[tuple[int, int], ...]


def _changes(before: str, after: str) -> tuple[Spans, Spans]:
    """The spans of each of two lines that the other hasn't; none where they have little in common."""
    old, new = (_WORD.findall(text) for text in (before, after))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < ALIKE:
        return (), ()
    gone, come = [], []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind != "equal":
            gone.append((_length(old[:i]), _length(old[:j])))
            come.append((_length(new[:k]), _length(new[:m])))
    return _spans(gone), _spans(come)


_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def _length(words: Sequence[str]) -> int:
    return sum(map(len, words))


def _spans(found: Sequence[tuple[int, int]]) -> Spans:
    return tuple((start, end) for start, end in found if end > start)


def _lines(text: str) -> list[str]:
    """The lines as a lexer counts them: a lone carriage return must not make another one."""
    plain = text.replace("\r\n", "\n").replace("\r", "\N{REPLACEMENT CHARACTER}").expandtabs(4)
    return plain.removesuffix("\n").split("\n")


def _highlighted(text: str, language: Language) -> list[Text]:
    """The lines in the theme's colours, without its background, which would hide that of what changed."""
    plain = "\n".join(_lines(text))
    lines = Syntax(plain, LEXERS[language], theme=THEME).highlight(plain).split("\n", allow_blank=True)
    for line in lines:
        line.style = "#f8f8f2"
        line.spans = [span._replace(style=_foreground(span.style)) for span in line.spans]
    return list(lines)


def _foreground(style: Style | str) -> Style | str:
    return (
        Style(color=style.color, bold=style.bold, italic=style.italic) if isinstance(style, Style) else style
    )


@dataclass(frozen=True)
class _Look:
    """How a line is shown: its sign, its background, and that of what changed in it."""

    sign: str
    background: str
    changed: str


_SAME = _Look(" ", "on #272822", "")
_GONE = _Look("-", "on #4a2326", "on #8c2f39")
_COME = _Look("+", "on #1f3d2b", "on #2f7d4a")


def _table(hunk: Hunk, old: Sequence[Text], new: Sequence[Text]) -> Table:
    """Rows of line numbers, sign and highlighted text."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for _ in range(2):
        grid.add_column(justify="right", style="#90908a", no_wrap=True, min_width=4)
    grid.add_column(no_wrap=True, style="bold #f8f8f2")
    grid.add_column(ratio=1, overflow="fold")
    for line in hunk:
        look = _SAME if line.before and line.after else _COME if line.after else _GONE
        text = (new[line.after - 1] if line.after else old[(line.before or 1) - 1]).copy()
        for start, end in line.changed:
            text.stylize(look.changed, start, end)
        grid.add_row(_number(line.before), _number(line.after), look.sign, text, style=look.background)
    return grid


def _number(line: int | None) -> str:
    return "" if line is None else str(line)
