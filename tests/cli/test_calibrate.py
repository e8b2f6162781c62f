"""`mctskernel calibrate` as a user types it, with a GPU on paper in place of a real one."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import calibrate as command
from mctskernel.cli import main
from mctskernel.cli.errors import BAD_MACHINE, USAGE
from mctskernel.core.device import DeviceError
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.calibration import machine
from mctskernel.profiling.gpu.cuda_driver import CudaError
from tests.profiling.calibration.paper_gpu import PaperGpu

FINGERPRINT = {"gpu": "NVIDIA H200", "driver": "13.0"}


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., PaperGpu]:
    """Put a GPU on paper into this machine, and work in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def put(gpu: PaperGpu, *notes: str) -> PaperGpu:
        monkeypatch.setattr(command, "open_machine", lambda: (gpu, FINGERPRINT, notes))
        return gpu

    return put


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["calibrate", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_it_writes_a_file_that_a_search_can_take(connect: Callable[..., PaperGpu], tmp_path: Path) -> None:
    connect(PaperGpu(load_architecture("H200")))
    code, output = run("--out", "files/mine.toml")
    assert code == 0
    assert "Written to files/mine.toml" in output
    found = load_architecture(str(tmp_path / "files" / "mine.toml"))
    assert found.memory.dram_bytes_per_second == pytest.approx(4.3e12, rel=0.02)
    measured = tomllib.loads((tmp_path / "files" / "mine.toml").read_text())["measured"]
    assert measured["driver"] == "13.0"
    search = CliRunner().invoke(main, ["search", "--architecture", "files/mine.toml", "--budget", "x"])
    assert "'--budget'" in search.output


def test_the_table_shows_the_difference(
    connect: Callable[..., PaperGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    connect(PaperGpu(load_architecture("H200"), noise=0.0), "Another process has 7 GiB.")
    code, output = run("--against", "h100")
    assert code == 0
    assert "memory.dram_bytes_per_second 4.3e+12 3.023e+12 +42% 0.0%" in output
    assert "memory.l2_bytes 6.291e+07 5.243e+07 +20% the driver" in output
    assert "throughput.fma 128 128 +0% 0.0%" in output
    assert "Another process has 7 GiB." in output


def test_no_gpu_is_a_sentence_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> None:
        raise DeviceError("There is no NVIDIA driver here (libcuda.so.1).")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "open_gpu", missing)
    code, output = run()
    assert code == BAD_MACHINE
    assert "There is no NVIDIA driver here" in output
    assert "run it on the machine that has it, or take a GPU that is described already (A100, " in output
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_lost_is_a_sentence(connect: Callable[..., PaperGpu], tmp_path: Path) -> None:
    def lost(length: int) -> float:
        raise CudaError("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")

    connect(PaperGpu(load_architecture("H100"), broken={"latency.l1": lost}))
    code, output = run()
    assert code == BAD_MACHINE
    assert "The GPU can't be measured: unspecified launch failure" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--against", "GTX480"), "There is no description of the GPU 'GTX480'"),
        (("--against", "missing.toml"), "There is no file 'missing.toml'"),
        (("--out", "taken/mine.toml"), "can't be written"),
        (("--out", "."), "is a directory"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(
    connect: Callable[..., PaperGpu], tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    gpu = connect(PaperGpu(load_architecture("H100")))
    code, output = run(*arguments)
    assert code == USAGE
    assert complaint in output.replace("│ │", "").replace("  ", " ")
    assert not gpu.asked
