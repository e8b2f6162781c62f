"""What counts of Kernel Tuner's searches; Kernel Tuner itself is not needed."""

import json
from pathlib import Path

import pytest

from mctskernel.experiments import kernel_tuner
from mctskernel.experiments.kernel_tuner import Job, search, slim

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


def test_a_repeated_request_costs_no_evaluation(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"x": 1, "time": 8.0}, {"x": 1, "time": 8.0}, {"x": 2, "__error__": "RuntimeFailedConfig"}]
    rows += [{"x": 1, "time": 8.0}, {"x": 3, "time": 4.0}, {"x": 4, "time": 2.0}]
    monkeypatch.setattr(kernel_tuner, "_simulate", lambda _job, _space: rows)
    trial = search(Job(cache, "pso", seed=7, budget=4))
    assert trial.key == ("pso", "four", 7)
    assert [trial.after(count) for count in (1, 2, 3, 4)] == [0.25, 0.25, 0.5, 1.0]
