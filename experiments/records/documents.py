"""Tables with titles as data, so that the Markdown of a result can be made again from its JSON."""

from __future__ import annotations

import msgspec

from mctskernel.report.markdown_table import table_lines


class Table(msgspec.Struct, frozen=True, tag="table"):
    """Rows of cells as they are shown; the first column is text and the others are numbers."""

    columns: list[str]
    rows: list[list[str]]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Markdown that is shown as it is."""

    text: str


Block = Table | Text


class Section(msgspec.Struct, frozen=True):
    """What stands under a heading of the second level."""

    title: str
    blocks: list[Block]


class Document(msgspec.Struct, frozen=True):
    """A page: what stands under its title, then its sections."""

    title: str
    sections: list[Section]
    lead: list[Block] = []


def markdown(document: Document) -> str:
    """The page as Markdown, without a newline at its end."""
    blocks = [f"# {document.title}", *map(_block, document.lead)]
    for section in document.sections:
        blocks += [f"## {section.title}", *map(_block, section.blocks)]
    return "\n\n".join(blocks)


def _block(block: Block) -> str:
    return block.text if isinstance(block, Text) else "\n".join(table_lines(block.columns, block.rows))
