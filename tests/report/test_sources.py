"""Sources as highlighted lines, and changes between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.kernel import Language
from mctskernel.report.details import Sources, changes, highlighted
from mctskernel.tasks.builtin import builtin_tasks

TEXTS = st.lists(
    st.sampled_from(
        ["int x = 1;", "/* a", "b */", '"""', "# c", "// d 'e", "", "x = 'f'", '"', "<script>", "\tg"]
    )
)
NUMBERS = st.lists(st.integers(0, 5)).map(tuple)


@settings(deadline=None)
@given(TEXTS, st.sampled_from(Language))
def test_lines_hold_the_text_and_nothing_else(lines: list[str], language: Language) -> None:
    sources = Sources()
    numbers = sources.add("".join(f"{line}\n" for line in lines), language)
    assert ["".join(sources.lines[number][1::2]) for number in numbers] == lines


@pytest.mark.parametrize("name", ["matmul", "softmax", "attention"])
@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON])
def test_a_source_line_by_line_looks_as_it_does_whole(name: str, language: Language) -> None:
    text = (builtin_tasks()[name] / f"kernel{language.suffix}").read_text()
    sources = Sources()
    numbers = sources.add(text, language)
    assert [sources.lines[number] for number in numbers] == list(highlighted(text.rstrip("\n"), language))


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_changes_make_the_new_of_the_old(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    made: list[int] = []
    at = 0
    for start, end, first, last in changes(old, new):
        made += old[at:start]
        made += new[first:last]
        at = end
    assert tuple(made) + old[at:] == new
