"""Modules of experiments/ itself are run, those of its packages are not, and pages name none that isn't there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"


def test_what_is_run_stands_at_the_top_and_what_is_not_stands_in_packages() -> None:
    modules = [file for file in EXPERIMENTS.rglob("*.py") if not _is_of_a_task(file)]
    is_run = {file for file in modules if 'if __name__ == "__main__":' in file.read_text()}
    assert is_run == {file for file in modules if file.parent == EXPERIMENTS} - {EXPERIMENTS / "__init__.py"}


def _is_of_a_task(file: Path) -> bool:
    return file.relative_to(EXPERIMENTS).parts[0] in {"families", "plain_suite"}


def test_commands_that_pages_name_are_there() -> None:
    named = {*_named_commands()}
    assert len(named) > 20
    assert not {name for name in named if not (EXPERIMENTS / f"{name}.py").is_file()}


def _named_commands() -> Iterator[str]:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "results").rglob("*.json"))
    for page in pages:
        yield from re.findall(r"-m mctskernel\.experiments\.(\w+)", page.read_text())
