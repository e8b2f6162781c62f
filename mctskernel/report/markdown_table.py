"""Tables of Markdown that can be read as they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table with its columns aligned: the first is text, the others are numbers."""
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join((first, *others))} |"

    yield line(columns)
    yield f"| {' | '.join(('-' * widths[0], *('-' * (width - 1) + ':' for width in widths[1:])))} |"
    yield from map(line, rows)
