"""`mctskernel compare`: which kernel is faster, and what isn't compared at all."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mctskernel.cli.errors import BAD_RUN
from mctskernel.core.evaluation import Evaluation, Source
from tests.cli.command import flat, mctskernel
from tests.synthetic_run import SyntheticRun, timed, with_configuration

compare = partial(mctskernel, "compare")


def measured(microseconds: float, seed: int = 0, spread: float = 0.01) -> Evaluation:
    """A time with samples, beside a starting kernel of 100 microseconds."""
    drawn = np.random.default_rng(seed).normal(microseconds, spread * microseconds, 60)
    made = timed(microseconds, Source.MEASURED)
    timing = replace(made.timings[0], samples=tuple((1e-6 * drawn).tolist()), baseline_seconds=100e-6)
    return replace(made, timings=(timing,), diagnosis=None)


class Runs:
    """Makes runs whose best kernels take so many microseconds."""

    def __init__(self, folder: Path, task: Path) -> None:
        self._folder, self._task = folder, task

    def __call__(self, name: str, *times: float, seed: int = 0, gpu: str = "") -> Path:
        path, modelled = self._folder / name, not gpu
        root = timed(100.0) if modelled else measured(100.0)
        configuration = with_configuration(seed=seed, device="model" if modelled else "gpu")
        run = SyntheticRun(path, self._task, configuration, root=root)
        if gpu:
            document = json.loads(run.folder.manifest.read_text())
            document["fingerprint"] = {"device": "gpu", "gpu": "H100", "uuid": gpu, "driver": "13.0"}
            run.folder.manifest.write_text(json.dumps(document))
        makes = timed if modelled else measured
        run.edits(0, *((f"edit {n}", makes(each)) for n, each in enumerate(times)))
        return path


@pytest.fixture
def runs(tmp_path: Path, small_task: Path) -> Runs:
    return Runs(tmp_path, small_task)


def test_two_measured_kernels_are_told_apart_by_their_samples(runs: Runs) -> None:
    slow, fast = runs("slow", 50, gpu="one"), runs("fast", 40, gpu="one")
    found = json.loads(compare(slow, fast, "--json").stdout)
    (kernels,) = found["kernels"]
    assert kernels["ratio"] == pytest.approx(50 / 40, rel=0.01)
    assert kernels["low"] < 1.25 < kernels["high"]
    assert kernels["high"] / kernels["low"] < 1.02
    assert kernels["differs"]
    assert f"{fast} has the faster kernel" in flat(compare(slow, fast).stdout)


def test_less_than_the_noise_between_runs_is_no_difference(runs: Runs) -> None:
    first, second = runs("first", 50, gpu="one"), runs("second", 49.5, gpu="one")
    (kernels,) = json.loads(compare(first, second, "--json").stdout)["kernels"]
    assert not kernels["differs"]
    assert "no significant difference" in compare(first, second).stdout


def test_a_row_tells_what_a_run_came_to(runs: Runs) -> None:
    first, second = runs("first", 50, 25, 80), runs("second", 50)
    row, other = json.loads(compare(first, second, "--json").stdout)["runs"]
    assert (row["evaluations"], row["failures"], row["best"], row["edit"]) == (4, 0, 2, "edit 1")
    assert row["speedup"] == pytest.approx(4.0)
    assert row["interval"] == "one standard deviation of the model's error"
    assert other["speedup"] == pytest.approx(2.0)


def test_other_devices_are_not_compared(runs: Runs) -> None:
    first, second = runs("first", 50, gpu="one"), runs("second", 20, gpu="another")
    result = compare(first, second)
    assert "times of different devices are not compared" in flat(result.stdout)
    found = json.loads(compare(first, second, "--json").stdout)
    assert found["kernels"] == []
    assert "not compared" in " ".join(json.loads(compare(first, runs("model", 20), "--json").stdout)["notes"])


def test_other_tasks_are_not_compared(runs: Runs, tmp_path: Path, small_task: Path) -> None:
    task = tmp_path / "other_task"
    task.mkdir()
    for file in small_task.iterdir():
        (task / file.name).write_text(file.read_text().replace("n = 4096", "n = 8192"))
    first, second = runs("first", 50), Runs(tmp_path, task)("second", 20)
    found = json.loads(compare(first, second, "--json").stdout)
    assert found["kernels"] == []
    assert any("other versions of double" in note for note in found["notes"])


def test_an_empty_run_and_a_torn_one_are_told(runs: Runs) -> None:
    first, second = runs("first", 50), runs("second", 40)
    with (second / "journal.jsonl").open("ab") as file:
        file.write(b'{"event":"eval')
    with pytest.warns(UserWarning, match="incomplete"):
        assert compare(first, second).exit_code == 0
    lines = (second / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (second / "journal.jsonl").write_bytes(lines[0])
    result = compare(first, second)
    assert result.exit_code == 0
    assert "second: no valid kernel yet" in flat(result.stdout)


def test_a_newer_run_is_refused(runs: Runs) -> None:
    first, second = runs("first", 50), runs("second", 40)
    manifest = msgspec.json.decode((second / "run.json").read_bytes())
    (second / "run.json").write_text(json.dumps({**manifest, "schema_version": 7}))
    result = compare(first, second)
    assert result.exit_code == BAD_RUN
    assert "schema version 7" in result.stderr
