"""Faults at random moments of searches: nothing finished is lost, nothing hangs, and what is planted is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mctskernel.experiments.fault_injection.kinds import KINDS, Kind
from mctskernel.experiments.fault_injection.subjects import Place, Starter, small_disks_work, walk
from mctskernel.experiments.fault_injection.trials import Injected, Trial
from mctskernel.experiments.faults import by_kind, inject, plan

CHEAP = [kind for kind in KINDS if "landscape" in kind.subjects and kind.place == "plain"]
ON_RECORDED = ("files may not grow", "SIGTERM", "the run is read-only", "kill -9 of the search")
WITH_WORKERS = ("kill -9 of a worker", "a worker crashes", "kill -9 of the search")
ON_A_GPU = ("kill -9 of a compiler", "kill -9 of the GPU process", "the GPU disappears")


def named(*names: str) -> list[Kind]:
    return [next(kind for kind in KINDS if kind.name == name) for name in names]


def wrong(rows: list[Injected]) -> list[Injected]:
    return [
        row for row in rows if row.lost or row.hung or row.problem or row.resumed is False or not row.began
    ]


def test_a_search_meets_every_fault_that_needs_no_other_process(tmp_path: Path, starter: Starter) -> None:
    rows = inject(tmp_path / "x", "landscape", CHEAP, np.random.default_rng(1), starter=starter)
    assert not wrong(rows)
    assert len(rows) >= len(CHEAP) - 2, "nearly all of them met a search"


@pytest.mark.parametrize(
    ("subject", "names"),
    [("recorded", ON_RECORDED), ("model", WITH_WORKERS), ("gpu", ON_A_GPU)],
    ids=["recorded", "model", "gpu"],
)
def test_commands_meet_faults(tmp_path: Path, starter: Starter, subject: str, names: tuple[str, ...]) -> None:
    rows = inject(tmp_path / "x", subject, named(*names), np.random.default_rng(2), starter=starter)
    assert not wrong(rows)
    assert len(rows) >= len(names) - 1


@pytest.mark.skipif(not small_disks_work(), reason="no file system can be mounted here")
def test_a_disk_that_is_full_ends_a_search_with_a_sentence(tmp_path: Path, starter: Starter) -> None:
    kinds = named("the disk is full", "the disk is full")
    rows = inject(tmp_path / "x", "landscape", kinds, np.random.default_rng(3), starter=starter)
    assert not wrong(rows)
    assert [row.ending for row in rows] == ["status 4"] * 2


@pytest.mark.parametrize(
    ("mistake", "faults"),
    [
        ("keep_lines_back", ["kill -9 of the search"] * 3),
        ("forget_to_lock", ["two resume at once"]),
        ("keep_torn_lines", ["the journal's end is torn"] * 3),
    ],
)
def test_a_planted_mistake_is_found(
    tmp_path: Path, starter: Starter, mistake: str, faults: list[str]
) -> None:
    subject = walk(script="planted.py")
    subject.variables["PLANTED"] = mistake
    trial = Trial(subject, Place(tmp_path, tmp_path), starter, np.random.default_rng(4))
    rows = trial.faults(named(*faults), lambda _: None)
    assert wrong(rows), rows


def test_a_plan_has_every_kind_and_as_many_faults_as_were_asked_for() -> None:
    planned = plan(300, np.random.default_rng(0))
    kinds = [kind.name for _, kinds in planned for kind in kinds]
    assert len(kinds) == 300
    assert set(kinds) >= {kind.name for kind in KINDS if kind.place == "plain"}
    for subject, each in planned:
        assert all(subject in kind.subjects for kind in each)
        assert len({kind.place for kind in each}) == 1


def test_the_table_sums_up() -> None:
    rows = [
        Injected("SIGTERM", "model", "status 130", 1.5, resumed=True),
        Injected("SIGTERM", "model", "status 130", 2.5, lost=2, resumed=True),
        Injected("the run is deleted", "recorded", "status 4", 0.5),
    ]
    *kinds, everything = by_kind(rows)
    assert [line["fault"] for line in kinds] == ["SIGTERM", "the run is deleted"]
    assert everything == {
        "fault": "all",
        "injected": 3,
        "resumed": 2,
        "lost": 2,
        "wrong": 0,
        "longest_pause_seconds": 2.5,
    }
