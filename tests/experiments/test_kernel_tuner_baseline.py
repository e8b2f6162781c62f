"""What is counted of Kernel Tuner's searches; Kernel Tuner itself is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mctskernel.experiments import kernel_tuner_baseline
from mctskernel.experiments.kernel_tuner_baseline import Job, search, slim

CACHE = {
    "kernel_name": "k",
    "problem_size": 1,
    "tune_params_keys": ["x"],
    "tune_params": {"x": [1, 2, 3, 4]},
    "cache": {
        str(x): {"x": x, "time": time, "times": [time] * 30, "GFLOP/s": 5.0}
        for x, time in {1: 8.0, 2: "RuntimeFailedConfig", 3: 4.0, 4: 2.0}.items()
    },
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "four.json"
    path.write_text(json.dumps(CACHE))
    (tmp_path / "slim").mkdir()
    return slim(path, tmp_path / "slim")


def test_a_slim_copy_keeps_parameters_and_times(cache: Path) -> None:
    found = json.loads(cache.read_text())
    assert found["cache"]["3"] == {"x": 3, "time": 4.0}
    assert {**found, "cache": None} == {**CACHE, "cache": None}


def test_what_is_asked_for_again_costs_nothing_or_counts_as_a_request(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"x": 1, "time": 8.0}, {"x": 1, "time": 8.0}, {"x": 2, "__error__": "RuntimeFailedConfig"}]
    rows += [{"x": 1, "time": 8.0}, {"x": 3, "time": 4.0}, {"x": 4, "time": 2.0}]
    simulated(rows, monkeypatch)
    by_configuration, by_requests = search(Job(cache, "pso", seed=7, budget=4))
    assert by_configuration.improvements == ((1, 0.25), (3, 0.5), (4, 1.0))
    assert (by_configuration.evaluations, by_configuration.failures) == (4, 1)
    assert by_requests.improvements == ((1, 0.25),)
    assert by_requests.evaluations == 4
    assert (by_configuration.key, by_requests.contender) == (
        ("four", "kernel_tuner:pso", 7, 1),
        "kernel_tuner:pso, by requests",
    )


def test_a_strategy_that_ends_early_keeps_its_last_share(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated([{"x": 3, "time": 4.0}], monkeypatch)
    by_configuration, _ = search(Job(cache, "mls", seed=0, budget=200))
    assert by_configuration.evaluations == 1
    assert by_configuration.share(200) == 0.5


def simulated(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tuner_baseline, "_simulate", lambda job, space: rows)
    monkeypatch.setattr(kernel_tuner_baseline, "version", lambda package: "0")
