"""Texts from outside on a terminal, to which they can't give orders.

What a task, a kernel, a model or a file's name says may hold escape sequences. Every command prints through one of
three: a `PlainConsole` for what is styled, `echo` for sentences, and `deliver` for what is read by programs, which
is left as it is unless a terminal would get it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from types import TracebackType

import rich_click as click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""Of both sets, C0 and C1: an escape sequence begins with one of them."""

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that have a terminal show others in another order than they stand in."""

_ORDERS = dict.fromkeys((*_CONTROLS, *_DIRECTIONS), "\N{REPLACEMENT CHARACTER}") | {
    ord("\n"): "\n",
    ord("\t"): "\t",
}


def plain(text: str) -> str:
    """A text with replacement characters for what a terminal would obey."""
    return text if text.isprintable() else text.translate(_ORDERS)


def echo(sentence: str, *, err: bool = False) -> None:
    """Print a sentence and a line's end, on standard error if it is a remark."""
    click.echo(plain(sentence), err=err)  # noqa: TID251 - here it is made harmless


def deliver(text: str) -> None:
    """Print what a program or a file is to have, byte for byte unless standard output is a terminal."""
    # Coloured or not, it is nobody else's to change.
    click.echo(plain(text) if on_terminal() else text, nl=False, color=True)  # noqa: TID251 - as above


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def complain(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """The traceback of a defect, on standard error; to be `sys.excepthook`."""
    echo("".join(traceback.format_exception(kind, error, where)).rstrip("\n"), err=True)


class PlainConsole(Console):
    """Shows what a terminal would obey in what is printed as replacement characters; rich's own orders still pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of something renderable, their texts made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=plain(segment.text))
