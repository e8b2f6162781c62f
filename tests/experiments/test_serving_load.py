"""A small load on a server, and what the experiment calls good."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from mctskernel.experiments.serving.load import Load, load
from mctskernel.experiments.serving.proxy import faulty_proxy
from mctskernel.experiments.serving.refusals import Refusal
from mctskernel.experiments.serving.served import STAND_IN, Served, ServedSettings
from mctskernel.experiments.serving.stand_in import SECONDS
from mctskernel.experiments.serving_load import Report, is_good, page
from mctskernel.serving.tokens import add_client

FINE = Load(2, 10, 0, 0, 10, [], 1.0, 0.01, 0.1, [5, 4], [(0.25, 1 << 20), (0.5, 2 << 20)])
REFUSED = Refusal("no token", 401, 401, "There is no such token.", "", 0.1)


def report(undisturbed: Load = FINE, disturbed: Load | None = FINE, refused: Refusal = REFUSED) -> Report:
    return Report(STAND_IN, 2, 0.05, undisturbed, disturbed, [], [refused], 0.05, 0.06)


def test_clients_that_share_a_server_through_a_spoiling_proxy_lose_nothing(
    small_task: Path, tmp_path: Path
) -> None:
    task = tmp_path / "task"
    shutil.copytree(small_task, task)
    (task / SECONDS).write_text("0.01")
    tokens = {name: add_client(tmp_path / "tokens", name) for name in ("alice", "bob")}
    served = Served(tmp_path / "tokens", ServedSettings(STAND_IN, workers=1))
    try:
        with faulty_proxy(served.url, share=0.25, seed=3) as proxy:
            found = load(served, proxy.url, task, tokens, 24)
    finally:
        served.stop()
    assert (found.submitted, found.lost, found.twice, found.problems) == (24, 0, 0, [])
    assert found.judged == 24, "nothing is judged twice while no process is lost"
    assert proxy.injected
    assert all(size for _, size in found.resident)


def test_a_load_is_good_only_if_everything_came_back_once_and_was_refused_rightly() -> None:
    assert is_good(report())
    assert is_good(report(disturbed=None))
    assert is_good(report(disturbed=msgspec.structs.replace(FINE, judged=12)))
    for spoilt in ({"lost": 1}, {"twice": 1}, {"judged": 11}, {"problems": ["gone"]}):
        assert not is_good(report(undisturbed=msgspec.structs.replace(FINE, **spoilt)))
    assert not is_good(report(disturbed=msgspec.structs.replace(FINE, lost=1)))
    assert not is_good(report(refused=msgspec.structs.replace(REFUSED, status=200)))


def test_the_page_says_what_the_report_holds() -> None:
    told = page(report())
    assert "| undisturbed" in told and "| no token" in told
    assert "50.0 ms with the local executor and 60.0 ms through the server: 10.0 ms more" in told
    assert "## What was done to it" not in page(report(disturbed=None))


@pytest.mark.parametrize("samples", [[], [(0.1, 0)], [(0.1, 5)]])
def test_memory_is_told_of_however_few_samples_there_are(samples: list[tuple[float, int]]) -> None:
    assert page(report(msgspec.structs.replace(FINE, resident=samples)))
