"""Every planted bug is found by the emulator where it stands, and its clean twin is silent."""

from __future__ import annotations

import pytest

from mctskernel.experiments.races import emulated
from mctskernel.experiments.subjects.planted_bugs import PlantedBug, planted_bugs

BUGS = planted_bugs()


def test_there_are_many_of_both_languages() -> None:
    assert len(BUGS) >= 50
    assert len({bug.kind for bug in BUGS}) >= 8
    assert {bug.faulty.language.value for bug in BUGS} == {"cuda", "triton"}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_twin_differs_in_marked_lines_alone(bug: PlantedBug) -> None:
    faulty, clean = bug.faulty.source.splitlines(), bug.clean.source.splitlines()
    assert len(faulty) == len(clean)
    different = [pair for pair in zip(faulty, clean, strict=True) if pair[0] != pair[1]]
    assert different
    assert all("" in pair for pair in different)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_where_it_stands(bug: PlantedBug) -> None:
    verdict = emulated(bug, bug.faulty)
    if bug.kind == "wrong_result":
        assert verdict.findings == [("wrong_result", None, None)]
        return
    found = [(line, other) for kind, line, other in verdict.findings if kind == bug.kind]
    assert bug.line in [line for line, _ in found], verdict
    if bug.other_line is not None:
        assert (bug.line, bug.other_line) in found, verdict
    if bug.kind == "race":
        assert all(other is not None for _, other in found), "a race has two parties"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_clean_twin_is_silent(bug: PlantedBug) -> None:
    verdict = emulated(bug, bug.clean)
    assert (verdict.findings, verdict.message) == ([], "")
