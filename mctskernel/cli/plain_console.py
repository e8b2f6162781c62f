"""Printing text from outside without letting its escape sequences control the terminal.

Tasks, kernels, models and file names may hold such sequences. Every command prints through one of three: a
`PlainConsole` for styled text, `echo` for sentences, and `deliver` for what programs read, which stays byte for byte
unless standard output is a terminal.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import Any

import rich_click as click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

UNWRAPPED = 1000  # columns where nothing is wrapped

_PADDING = re.compile(" +\n")

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""C0 and C1 controls: an escape sequence begins with one of them."""

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of text."""

_ORDERS = dict.fromkeys((*_CONTROLS, *_DIRECTIONS), "\N{REPLACEMENT CHARACTER}") | {
    ord("\n"): "\n",
    ord("\t"): "\t",
}


def plain(text: str) -> str:
    """The text with control characters replaced."""
    return text if text.isprintable() else text.translate(_ORDERS)


def echo(sentence: str, *, err: bool = False) -> None:
    """Print a sentence and a newline, on standard error for warnings and notes."""
    click.echo(plain(sentence), err=err)  # noqa: TID251 - escaped here


def deliver(text: str) -> None:
    """Print output for programs and files, byte for byte unless standard output is a terminal."""
    click.echo(plain(text) if on_terminal() else text, nl=False, color=True)  # noqa: TID251 - as above


def deliver_json(value: object) -> None:
    """Print a value as indented JSON, for programs."""
    import msgspec  # noqa: PLC0415 - help pages are printed without it

    deliver(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def complain(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print the traceback of a defect on standard error; used as `sys.excepthook`."""
    echo("".join(traceback.format_exception(kind, error, where)).rstrip("\n"), err=True)


@cache
def _said(sentence: str) -> None:
    echo(f"mctskernel: {sentence}", err=True)


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning once, as a sentence on standard error; used as `warnings.showwarning`."""
    _said(str(message))


class PlainConsole(Console):
    """Replaces control characters in printed text; wraps and pads nothing off a terminal, unless COLUMNS says so."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._pads = self.is_terminal
        if not self.is_terminal and not {"COLUMNS", "width"} & {*os.environ, *arguments}:
            self.width = UNWRAPPED

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render segments with control characters replaced."""
        spaces = ""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control:
                yield segment
                continue
            if not self._pads:
                text = _PADDING.sub("\n", spaces + text)
                spaces = text[len(text.rstrip(" ")) :]
                text = text.rstrip(" ")
            yield segment._replace(text=text if text.isprintable() else plain(text))
