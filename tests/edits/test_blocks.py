"""Blocks between two texts make the second of the first, each of them at one place alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.edits.blocks import blocks_between

texts = st.lists(st.sampled_from(["a\n", "b\n", "ab\n", "\n", "  a\n", "c"]), max_size=14).map("".join)


@given(texts, texts)
def test_blocks_make_one_text_of_another(before: str, after: str) -> None:
    if not before:
        return
    text = before
    for block in blocks_between(before, after):
        assert block.search
        assert text.find(block.search) == text.rfind(block.search) != -1
        text = text.replace(block.search, block.replace)
    assert text == after


def test_a_block_shows_no_more_than_it_needs() -> None:
    lines = [f"line {number}\n" for number in range(100)]
    changed = [*lines[:50], "new\n", *lines[51:]]
    (block,) = blocks_between("".join(lines), "".join(changed))
    assert block.search == "line 49\nline 50\nline 51\n"
    assert block.replace == "line 49\nnew\nline 51\n"
    assert blocks_between("same\n", "same\n") == ()
