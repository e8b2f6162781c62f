"""Recorded spaces as a user meets them: searched, shown, gone on with, made."""

import json
from pathlib import Path

import pytest

from mctskernel.report.view import load_view
from tests.cli.command import mctskernel
from tests.spaces import saved


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of the bowl that the budget ended; the file that it read is gone."""
    folder = tmp_path_factory.mktemp("recorded")
    file = saved(folder)
    words = ("--device", "recorded", "--space", file, "--budget", "20")
    result = mctskernel("search", *words, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    assert "the budget is spent" in result.stdout
    file.unlink()
    return folder / "run"


def test_a_run_holds_its_space_and_its_start(run: Path) -> None:
    assert {file.name for file in (run / "task").iterdir()} == {"task.toml", "kernel.toml", "bowl.json"}
    assert "block = " in (run / "task" / "kernel.toml").read_text()
    assert json.loads((run / "run.json").read_text())["fingerprint"]["gpu"] == "A GPU"


def test_the_commands_work_on_a_recorded_run(run: Path) -> None:
    shown = mctskernel("show", run)
    assert "recorded (recorded, A GPU)" in shown.stdout
    assert "can't be run again" in shown.stdout
    assert "Cost by stage" in mctskernel("show", run, "1").stdout
    best = mctskernel("best", run)
    assert best.stdout.startswith("# bowl\nblock = ")
    exported = json.loads(mctskernel("export", run).stdout)
    assert len(exported["nodes"]) == 20
    explained = mctskernel("show", run, "0")
    assert explained.exit_code == 0
    assert "Only its recorded time is known." in explained.stdout
    assert "counters" not in explained.stdout


@pytest.mark.parametrize("command", [("resume", "--device", "gpu"), ("show", "--ncu")])
def test_a_recorded_configuration_cannot_be_run(run: Path, command: tuple[str, ...]) -> None:
    result = mctskernel(command[0], run, *command[1:])
    assert result.exit_code == 4
    assert "it has no kernels to run" in result.stderr


@pytest.mark.slow
def test_seconds_are_those_of_the_recording(tmp_path: Path) -> None:
    """An evaluation takes from 1 to 6 s of them: nobody waits, and eight in flight spend them eight times as fast."""
    file = saved(tmp_path)
    evaluations = {}
    for workers in ("1", "8"):
        words = ("--space", file, "--budget", "40", "--seconds", "20", "--workers", workers)
        assert mctskernel("search", *words, "--out", tmp_path / workers).exit_code == 0
        evaluations[workers] = load_view(tmp_path / workers).tree.evaluations
    assert 4 <= evaluations["1"] <= 20
    assert evaluations["8"] >= 2 * evaluations["1"]
    before = load_view(tmp_path / "1").tree.evaluations
    assert mctskernel("resume", tmp_path / "1", "--seconds", "20").exit_code == 0
    assert load_view(tmp_path / "1").tree.evaluations == before


def test_a_folder_with_a_space_is_a_task(run: Path, tmp_path: Path) -> None:
    assert "46 configurations" in mctskernel("check", run / "task").stdout
    result = mctskernel("search", run / "task", "--budget", "3", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert mctskernel("evaluate", run / "task").exit_code == 5
