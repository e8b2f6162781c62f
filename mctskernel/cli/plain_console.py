"""A console on which texts from outside can't give the terminal orders."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_ORDERS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\N{REPLACEMENT CHARACTER}") | {
    ord("\n"): "\n",
    ord("\t"): "\t",
}
"""Control characters of both sets, C0 and C1: an escape sequence begins with one of them."""


class PlainConsole(Console):
    """Shows control characters in what is printed as replacement characters; rich's own orders still pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of something renderable, their texts made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=segment.text.translate(_ORDERS))
