"""What pages quote from results is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.experiments.records.quotations import misquoted

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_quotes_results_as_they_are(page: Path) -> None:
    assert list(misquoted(page)) == []


def test_some_page_quotes() -> None:
    assert any("<!-- quotes " in page.read_text() for page in PAGES)
    assert any("<!-- figures from " in page.read_text() for page in PAGES)


def test_a_wrong_figure_is_seen(tmp_path: Path) -> None:
    (tmp_path / "table.md").write_text("| softmax | 26.50x |\n")
    page = tmp_path / "page.md"
    page.write_text('Softmax got\n26.50x faster.\n\n<!-- quotes table.md: "26.50x" -->\n')
    assert list(misquoted(page)) == []
    page.write_text('Softmax got 27x faster.\n\n<!-- quotes table.md: "27x", "26.50x" -->\n')
    assert list(misquoted(page)) == [
        'page.md quotes "27x" from table.md, which doesn\'t say so.',
        'page.md says that it quotes "26.50x" from table.md, and doesn\'t.',
    ]
    page.write_text('It is 1. <!-- quotes gone.md: "1" -->')
    assert list(misquoted(page)) == ['page.md quotes "1" from gone.md, which doesn\'t say so.']


def test_a_wrong_figure_of_a_table_is_seen(tmp_path: Path) -> None:
    (tmp_path / "result.md").write_text("| softmax | 2456.5 | 26.50x | 93.8 |\n")
    page = tmp_path / "page.md"
    table = "| task of 1,000 | start | best |\n|---|---|---|\n| softmax 8192 | 2,456 | {} |\n"
    marked = f"{table}\n<!-- figures from result.md -->\n"
    page.write_text(marked.format("93.8"))
    assert list(misquoted(page)) == []
    page.write_text(marked.format("93.9"))
    assert list(misquoted(page)) == ["page.md has 93.9 in a table, which result.md don't say."]
