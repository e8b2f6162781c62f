"""What `mctskernel doctor` says of isolation."""

from __future__ import annotations

import pytest

from mctskernel.profiling.isolation.confinement import Mechanism, aspects

EVERYTHING = {
    "network namespace": "root's rights",
    "process limit": "alone",
    "Landlock": "version 7",
    "seccomp": "",
    "size limits": "",
}
ALWAYS_OPEN = {"GPU memory and time of neighbours", "what ncu and compute-sanitizer may do"}
FILES = {
    "writing outside their folder",
    "reading your files",
    "memory of other processes",
    "signals to other processes",
}


@pytest.mark.parametrize(
    ("missing", "landlock", "uncovered"),
    [
        (set(), "version 7", set()),
        ({"seccomp"}, "version 7", set()),
        ({"seccomp", "network namespace"}, "version 7", {"network"}),
        ({"process limit"}, "version 7", {"number of processes"}),
        ({"Landlock"}, "", FILES),
        (set(), "version 3", {"signals to other processes"}),
    ],
)
def test_what_a_machine_lacks_is_said_with_a_remedy(
    missing: set[str], landlock: str, uncovered: set[str]
) -> None:
    mechanisms = tuple(
        Mechanism(name, name not in missing, landlock if name == "Landlock" else detail)
        for name, detail in EVERYTHING.items()
    )
    found = [each for each in aspects(mechanisms) if not each.covered]
    assert all(each.remedy for each in found)
    assert {each.name for each in found} == uncovered | ALWAYS_OPEN
