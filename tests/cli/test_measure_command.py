"""`mctskernel measure` as a user types it, from one modelled GPU to another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from tests.conftest import KERNEL, REFERENCE, TASK_TOML


def mctskernel(*words: str | Path) -> Result:
    """A command's result; an exception that isn't an exit is a traceback in front of a user, so it fails."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    (folder / "task").mkdir()
    for name, text in (("task.toml", TASK_TOML), ("reference.py", REFERENCE), ("kernel.cu", KERNEL)):
        (folder / "task" / name).write_text(text)
    arguments = ("--device", "model", "--budget", "6", "--workers", "1", "--out", folder / "run")
    assert mctskernel("search", folder / "task", *arguments).exit_code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def measured(searched: Path) -> tuple[Path, Result]:
    out = searched.parent / "measured"
    arguments = ("--nodes", "3", "--device", "model", "--architecture", "A100", "--out", out)
    return out, mctskernel("measure", searched, *arguments)


def test_both_times_and_their_order_are_printed(measured: tuple[Path, Result]) -> None:
    _, result = measured
    assert result.exit_code == 0, result.output
    assert "starting kernel" in result.stdout
    assert "H100" in result.stdout
    assert "A100" in result.stdout
    assert re.search(r"rank correlation", result.stdout, re.IGNORECASE)


def test_the_new_run_says_where_it_comes_from(searched: Path, measured: tuple[Path, Result]) -> None:
    manifest = json.loads((measured[0] / "run.json").read_text())
    origin = json.loads((searched / "run.json").read_text())
    assert manifest["measured_from"] == {"run": str(searched), "fingerprint": origin["fingerprint"]}
    assert "A100" in manifest["fingerprint"]["gpu"]


def test_the_new_run_is_a_run(measured: tuple[Path, Result]) -> None:
    out, _ = measured
    assert (out / "best" / "kernel.cu").is_file()
    assert mctskernel("show", out).exit_code == 0
    nodes = len(json.loads(mctskernel("export", out).stdout)["nodes"])
    assert mctskernel("resume", out, "--budget", str(nodes + 1)).exit_code == 0
    assert len(json.loads(mctskernel("export", out).stdout)["nodes"]) == nodes + 1


def test_a_folder_that_is_in_use_is_refused(searched: Path) -> None:
    result = mctskernel("measure", searched, "--device", "model", "--out", searched)
    assert result.exit_code == 4
    assert "already holds something" in result.stderr


def test_a_run_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    result = mctskernel("measure", tmp_path / "nowhere")
    assert result.exit_code == 4
    assert "is not a run" in result.stderr


def test_a_machine_without_a_gpu_is_a_sentence_and_leaves_no_folder(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = mctskernel("measure", searched, "--device", "gpu", "--out", tmp_path / "out")
    assert result.exit_code == 5, result.output
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
def test_modelled_times_beside_measured_ones(searched: Path, tmp_path: Path) -> None:
    result = mctskernel("measure", searched, "--nodes", "3", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "modelled" in result.stdout
    assert "measured" in result.stdout
    manifest = json.loads((tmp_path / "out" / "run.json").read_text())
    assert manifest["configuration"]["device"] == "gpu"
    assert manifest["fingerprint"]["uuid"]
