"""Folders of kernels with their times: made, gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.experiments.kernel_folders import Wanted, record
from mctskernel.experiments.record import main
from mctskernel.experiments.variants import measured_kernel, read_variants
from tests.conftest import WriteTask
from tests.landscape import InProcess, Interrupted

BLOCKS = {"BLOCK": (32, 64, 128, 256, 512)}


def judged(kernel: Kernel) -> Evaluation:
    """The time is the block, and blocks of 256 fail; no counter tells blocks apart."""
    block = kernel.macros["BLOCK"]
    if block == 256:
        return Evaluation(Outcome.WRONG_RESULT, Source.MEASURED, "256 is wrong")
    seconds = 1e-6 * block
    return Evaluation(
        Outcome.OK,
        Source.MEASURED,
        timings=(Timing("n=4096", seconds, seconds, seconds, samples=(seconds, 2 * seconds)),),
        counters={"smsp__inst_executed.sum": 7.0},
    )


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


def wanted(task: Task, **more: object) -> Wanted:
    return Wanted(**{"kernel": task.starting_kernel, "space": BLOCKS, "limit": 10, **more})


def outcomes(folder: Path) -> dict[int, Outcome]:
    return {each.tunables["BLOCK"]: each.outcome for each in read_variants(folder)}


def test_every_kernel_is_a_line_failures_included(task: Task, tmp_path: Path) -> None:
    record(task, wanted(task), tmp_path / "out", InProcess(3, judged))
    ok = dict.fromkeys((32, 64, 128, 512), Outcome.OK)
    assert outcomes(tmp_path / "out") == ok | {256: Outcome.WRONG_RESULT}


def test_a_line_has_its_time_counters_and_kernel(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    record(task, wanted(task, family="twice"), folder, InProcess(1, judged))
    (line,) = (each for each in read_variants(folder) if each.tunables == {"BLOCK": 128})
    assert (line.name, line.family, line.shape) == ("BLOCK=128", "twice", {"n": 4096})
    assert line.us == 128.0
    assert line.ncu == {"smsp__inst_executed.sum": 7.0}
    assert measured_kernel(folder, line).kernel.macros["BLOCK"] == 128
    failed = next(each for each in read_variants(folder) if each.tunables == {"BLOCK": 256})
    assert (failed.us, failed.message) == (None, "256 is wrong")
    assert len(list((folder / "sources").iterdir())) == 1


def test_the_same_command_goes_on_where_it_was_cut_off(task: Task, tmp_path: Path) -> None:
    first = Interrupted(1, judged)
    with pytest.raises(KeyboardInterrupt):
        record(task, wanted(task), tmp_path / "out", first)
    assert len(list(read_variants(tmp_path / "out"))) == 2
    second = InProcess(1, judged)
    record(task, wanted(task), tmp_path / "out", second)
    assert not {each.identity for each in first.judged} & {each.identity for each in second.judged}
    assert len(outcomes(tmp_path / "out")) == 5
    third = InProcess(1, judged)
    record(task, wanted(task), tmp_path / "out", third)
    assert third.judged == []


@pytest.mark.slow
def test_the_model_device_records_as_a_gpu_would(small_task: Path, tmp_path: Path) -> None:
    out = tmp_path / "double"
    arguments = [str(small_task), "--device", "model", "--workers", "1", "--out", str(out)]
    result = CliRunner().invoke(main, [*arguments, "--tunable", "BLOCK=32,64,128,256", "--limit", "4"])
    assert result.exit_code == 0, result.output
    lines = list(read_variants(out))
    assert {each.tunables["BLOCK"] for each in lines} == {32, 64, 128, 256}
    assert all(each.us and each.outcome is Outcome.OK for each in lines)
    assert all(each.ncu["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 512 for each in lines)
    assert json.loads((out / "record.json").read_text())["device"]["device"] == "model"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--out", "x"], 2, "TASK"),
        (["sum", "--tunable", "BLOCK", "--out", "x"], 2, "NAME=V1,V2"),
        (["sum", "--device", "model", "--out", "x"], 2, "BLOCK="),
        (["sum", "--tunable", "BLOK=1", "--device", "model", "--workers", "1", "--out", "x"], 1, "BLOK"),
    ],
)
def test_wrong_usage_is_a_sentence(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code
    assert sentence in result.output
