"""What `mctskernel doctor` says of isolation."""

from __future__ import annotations

import pytest

from mctskernel.profiling.isolation.confinement import Mechanism
from mctskernel.profiling.isolation.coverage import aspects

EVERYTHING = {
    "network namespace": "root's rights",
    "process limit": "alone",
    "thread names": "read-only mounts",
    "Landlock": "version 7",
    "seccomp": "",
    "size limits": "",
}
ALWAYS_OPEN = {"GPU memory and time of neighbours", "what ncu and compute-sanitizer may do"}


def uncovered(*missing: str, bubblewrap: str | None = None, **details: str) -> set[str]:
    """What isn't covered without some mechanisms. Whatever can be had says how."""
    mechanisms = tuple(
        Mechanism(name, in_force=name not in missing, detail=details.get(name, detail))
        for name, detail in EVERYTHING.items()
    )
    found = [each for each in aspects(mechanisms, bubblewrap=bubblewrap) if not each.covered]
    assert all(each.remedy for each in found)
    return {each.name for each in found} - ALWAYS_OPEN


def test_everything_is_covered_but_the_gpu() -> None:
    assert uncovered() == set()


@pytest.mark.parametrize(
    ("missing", "open_ways"),
    [
        (("seccomp",), set()),
        (("seccomp", "network namespace"), {"network"}),
        (("process limit",), {"number of processes"}),
        (("thread names",), {"the kernel's settings, from sessions on a GPU"}),
        (
            ("Landlock",),
            {
                "writing outside their folder",
                "reading your files",
                "memory of other processes",
                "signals to other processes",
            },
        ),
    ],
)
def test_what_a_machine_lacks_is_said(missing: tuple[str, ...], open_ways: set[str]) -> None:
    assert uncovered(*missing) == open_ways


def test_bubblewrap_stands_in_for_landlock() -> None:
    assert uncovered("Landlock", bubblewrap="/usr/bin/bwrap") == set()


def test_an_older_landlock_lets_signals_through() -> None:
    assert uncovered(Landlock="version 3") == {"signals to other processes"}
