"""Changes between two sources."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.report.details import changes

LINES = st.lists(st.sampled_from("abcdef"))


@settings(deadline=None)
@given(LINES, LINES)
def test_changes_make_the_new_of_the_old(old: list[str], new: list[str]) -> None:
    made: list[str] = []
    at = 0
    for start, end, first, last in changes(old, new):
        made += old[at:start]
        made += new[first:last]
        at = end
    assert made + old[at:] == new
