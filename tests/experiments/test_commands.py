"""Commands that the documentation names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_commands_that_pages_name_are_there() -> None:
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    named = {
        name for page in pages for name in re.findall(r"-m mctskernel\.experiments\.(\w+)", page.read_text())
    }
    assert named
    assert not {name for name in named if not (ROOT / "experiments" / f"{name}.py").is_file()}
