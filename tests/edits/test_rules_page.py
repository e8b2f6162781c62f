"""The page about the rules lists each of them, with its category, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from mctskernel.edits import triton
from mctskernel.edits.rules import ALL

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_every_rule_is_listed() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| ([\w -]+) \|", PAGE.read_text(), re.MULTILINE)
    assert listed == [(rule.name, rule.category.value) for rule in (*ALL, *triton.ALL)]


def test_names_are_unique() -> None:
    names = [rule.name for rule in (*ALL, *triton.ALL)]
    assert len(set(names)) == len(names)
