"""Edits apply exactly, or say in a sentence why they can't."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mctskernel.core.edit import Block, Category, Edit, Patch, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.edits.patch import PatchError, apply, as_patch, unified_diff

SOURCE = """\
void f() {
    int a = 1;
    int b = 2;
    if (a) {
        b = 3;
    }
}
"""


def edit(*blocks: tuple[str, str]) -> Edit:
    return Edit(Category.TUNING, "an edit", Patch(tuple(Block(*block) for block in blocks)))


def applied(source: str, *blocks: tuple[str, str]) -> str:
    return apply(Kernel(source), edit(*blocks)).source


def test_blocks_apply_in_order_each_to_the_result_of_the_one_before() -> None:
    result = applied(SOURCE, ("int a = 1;", "int c = 7;"), ("int c = 7;", "int c = 8;"))
    assert result == SOURCE.replace("int a = 1;", "int c = 8;")


def test_a_replacement_may_be_empty() -> None:
    assert applied(SOURCE, ("    int b = 2;\n", "")) == SOURCE.replace("    int b = 2;\n", "")


def test_indentation_and_trailing_blanks_may_differ() -> None:
    result = applied(SOURCE, ("if (a) {  \n    b = 3;\n}", "if (a) {\n    b = 4;\n    a = 5;\n}"))
    assert result == SOURCE.replace("        b = 3;\n", "        b = 4;\n        a = 5;\n")


def test_line_ends_stay_those_of_the_kernel() -> None:
    result = applied(
        SOURCE.replace("\n", "\r\n"), ("int a = 1;\n    int b = 2;", "int a = 2;\n    int b = 2;")
    )
    assert result == SOURCE.replace("a = 1", "a = 2").replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ([("int z;", "int y;")], "Block 1 of 1: its SEARCH text, from 'int z;' on, isn't in the source."),
        ([("int ", "long ")], "Block 1 of 1: its SEARCH text occurs 2 times; add lines that make it unique."),
        ([("  \n ", "x")], "Block 1 of 1 has an empty SEARCH text."),
        ([("a = 1", "a = 2"), ("a = 1", "a = 3")], "Block 2 of 2: its SEARCH text, from 'a = 1' on"),
        ([("int a = 1;", "int a = 1; // the same")], "The edit changes nothing but comments or spacing."),
        ([], "The patch has no blocks."),
    ],
)
def test_what_cannot_be_applied_is_refused_with_a_sentence(
    blocks: list[tuple[str, str]], sentence: str
) -> None:
    with pytest.raises(PatchError) as caught:
        applied(SOURCE, *blocks)
    assert sentence in str(caught.value)


def test_lines_that_match_twice_up_to_blanks_are_ambiguous() -> None:
    with pytest.raises(PatchError, match="occurs 2 times up to blanks"):
        applied("{\n  a;\n  b;\n}\n{\n    a;\n    b;\n}\n", ("a;\nb;", "c;"))


def test_overlapping_occurrences_are_ambiguous() -> None:
    with pytest.raises(PatchError, match="occurs 2 times"):
        applied("x\na\nx\na\nx\n", ("x\na\nx", "y"))


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(PatchError, match="empty source"):
        apply(Kernel(SOURCE), Edit(Category.TUNING, "nothing left", WholeSource(" \n")))


LINES = st.lists(
    st.sampled_from(["int a;", "  int a;", "b = 1;", "", "}", "for (;;) {", "\tc();"]), max_size=12
)
TEXTS = st.one_of(LINES.map(lambda lines: "\n".join(lines) + "\n"), LINES.map("\n".join))


@given(TEXTS, TEXTS)
@example("int a;\n\n", "\nb = 1;\n")
def test_a_difference_turned_into_blocks_applies_back(before: str, after: str) -> None:
    assume(before.strip() and after.strip() and Kernel(before).identity != Kernel(after).identity)
    change = Edit(Category.TUNING, "an edit", as_patch(before, after))
    assert apply(Kernel(before), change).source == after


@given(TEXTS, st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=3))
def test_any_blocks_either_apply_or_are_refused(source: str, blocks: list[tuple[str, str]]) -> None:
    try:
        result = applied(source, *blocks)
    except PatchError as error:
        assert str(error).endswith(".")
    else:
        assert result.strip()


@settings(max_examples=25)
@given(before=TEXTS, after=TEXTS)
def test_a_unified_diff_applies_with_patch(
    before: str, after: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    file, diff = folder / "kernel.cu", unified_diff(before, after)
    assert (diff == "") == (before == after)
    if diff:
        Path(file).write_text(before)
        header = "--- kernel.cu\n+++ kernel.cu\n"
        subprocess.run(["patch", "-s", "-p0"], cwd=folder, input=header + diff, text=True, check=True)
        assert file.read_text() == after if file.exists() else after == ""
