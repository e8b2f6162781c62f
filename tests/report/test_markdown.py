"""Texts of models in a page of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.answer import Answer
from mctskernel.report.markdown import trajectory_markdown
from mctskernel.report.view import load_view
from tests.conftest import WriteTask
from tests.told_run import ToldRun, timed


@pytest.mark.parametrize(
    "title",
    [
        "<img src=https://example.org/?x onerror=alert(1)>",
        "![wider](https://example.org/pixel.png)",
        "[details](javascript:alert(1))",
        "faster\n\n# 100x over the starting kernel, measured\n",
        "`<script>` &lt;b&gt; \x1b[2J",
    ],
)
def test_a_title_is_no_markup(write_task: WriteTask, tmp_path: Path, title: str) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    told.edits(0, (title, timed(50.0)))
    page = trajectory_markdown(replace(load_view(told.folder.path), answer=Answer(1, 2.0)))
    heading = next(line for line in page.splitlines() if line.startswith("## Node 1"))
    assert not re.search(r"(?<!\\)[<>\[\]`&]", heading)
    assert "\x1b" not in page
    assert sum(line.startswith("# ") for line in page.splitlines()) == 1


def test_names_and_products_stay_as_they_are(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    told.edits(0, ("block_size_x at 4*32, 10 % less", timed(50.0)))
    page = trajectory_markdown(replace(load_view(told.folder.path), answer=Answer(1, 2.0)))
    assert "## Node 1: block_size_x at 4*32, 10 % less" in page
