"""The suite: rows outlive the process that was cut off, and nothing is measured twice."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.core.kernel import Language
from mctskernel.experiments import suite as suite_module
from mctskernel.experiments.records.json_lines import append_line
from mctskernel.experiments.suite import main
from mctskernel.experiments.suites.rows import CeilingsRow, SearchRow, TorchRow, read_rows
from mctskernel.experiments.suites.search_cost import SearchCost
from mctskernel.experiments.suites.table import markdown_table, table_rows
from mctskernel.experiments.summarise_runs import Summary
from tests.conftest import WriteTask

SUMMARY = Summary(
    task="softmax",
    device="gpu, H100",
    numbers="measured",
    seed=0,
    evaluations=10,
    outcomes={"ok": 9, "race": 1},
    start_seconds=1e-3,
    best_seconds=1e-4,
    speedup=10.0,
    held_out_checks=4,
    seconds_per_candidate=0.4,
    path=["give each row a block"],
    fingerprint={"gpu": "H100"},
)
COST = SearchCost(
    evaluations=10,
    stages={"build": 0.1, "time": 0.3},
    candidate_seconds=0.4,
    wall_seconds=5.0,
    gpu_busy_share=0.6,
)


CEILINGS = CeilingsRow(copy_bytes_per_second=3e12, fp32_flops_per_second=6e13, tensor_flops_per_second=9e14)


def search_row(task: str = "softmax", flops: float = 0.0) -> SearchRow:
    return SearchRow(
        task=task,
        language=Language.CUDA,
        device="gpu",
        compulsory_bytes=240_000_000,
        flops=flops,
        summary=SUMMARY,
        cost=COST,
    )


def suite(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def test_rows_are_read_as_they_were_written_without_a_torn_last_line(tmp_path: Path) -> None:
    file = tmp_path / "out" / "rows.jsonl"
    rows = [search_row(), TorchRow(task="softmax", eager_seconds=2e-4), CEILINGS]
    for row in rows:
        append_line(file, row)
    with file.open("ab") as torn:
        torn.write(b'{"row":"search","ta')
    assert read_rows(file) == rows
    append_line(file, rows[0])
    assert read_rows(file) == [*rows, rows[0]]
    assert read_rows(tmp_path / "nothing") == []


def test_the_table_puts_the_times_beside_each_other() -> None:
    rows = [
        search_row(),
        search_row("matmul", flops=6e9),
        TorchRow(task="softmax", eager_seconds=2e-4, compiled_seconds=None),
        CEILINGS,
    ]
    matmul, softmax = table_rows(rows)
    assert softmax.eager_seconds == 2e-4
    assert softmax.compiled_seconds is None
    assert softmax.floor_seconds == pytest.approx(80e-6)
    assert softmax.floor_share == pytest.approx(0.8)
    assert matmul.floor_seconds == pytest.approx(100e-6), "its arithmetic takes longer than its bytes"
    assert "| softmax | cuda | 1000.0 | 100.0 | 10.00x | 200.0 |  | 80.0 | 80% |" in markdown_table([softmax])


def test_tensor_cores_lower_the_floor_of_16_bit_arithmetic_and_no_gpu_gives_none() -> None:
    row = msgspec.structs.replace(search_row("matmul", flops=9e10), tensor_cores=True)
    assert table_rows([row, CEILINGS])[0].floor_seconds == pytest.approx(100e-6)
    assert table_rows([row])[0].floor_seconds is None
    assert table_rows([msgspec.structs.replace(row, device="model"), CEILINGS])[0].floor_seconds is None


def test_a_later_row_replaces_an_earlier_one() -> None:
    failed = SearchRow(task="softmax", language=Language.CUDA, device="gpu", problem="no GPU")
    assert table_rows([failed])[0].problem == "no GPU"
    assert "softmax in cuda: no GPU" in markdown_table(table_rows([failed]))
    (row,) = table_rows([failed, search_row()])
    assert row.speedup == 10.0


def test_an_operator_that_kills_its_process_costs_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"

    def run(name: str, file: Path, *tasks: str) -> int:
        for task in tasks:
            if task == "deadly":
                return -11
            append_line(file, TorchRow(task=task, eager_seconds=1e-4))
        return 0

    monkeypatch.setattr(suite_module, "_run_module", run)
    suite_module.time_torch(rows, ["softmax", "deadly", "sum"])
    found = {row.task: row for row in read_rows(rows) if isinstance(row, TorchRow)}
    assert list(found) == ["softmax", "deadly", "sum"]
    assert "(-11)" in found["deadly"].problem
    assert found["sum"].eager_seconds == 1e-4
    before = rows.read_bytes()
    suite_module.time_torch(rows, ["softmax", "sum"])
    assert rows.read_bytes() == before


def test_a_task_is_searched_once(tmp_path: Path, write_task: WriteTask) -> None:
    arguments = ("--tasks", write_task(), "--languages", "cuda", "--device", "model", "--budget", "3")
    folders = ("--workers", "1", "--runs", tmp_path / "runs", "--out", tmp_path / "out")
    first = suite(*arguments, *folders)
    assert first.exit_code == 0, first.output
    (row,) = json.loads((tmp_path / "out" / "suite.json").read_text())["rows"]
    assert row["evaluations"] == 3
    assert row["speedup"] >= 1
    assert row["eager_seconds"] is None
    assert (tmp_path / "out" / "suite.md").read_text().count("| cuda |") == 1
    written = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert "1/1" not in suite(*arguments, *folders).output
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == written


def test_a_search_that_was_cut_off_goes_on(tmp_path: Path, write_task: WriteTask) -> None:
    arguments = ("--tasks", write_task(), "--languages", "cuda", "--device", "model", "--workers", "1")
    folders = ("--runs", tmp_path / "runs", "--out", tmp_path / "out")
    suite(*arguments, *folders, "--budget", "2")
    (tmp_path / "out" / "rows.jsonl").unlink()
    (journal,) = (tmp_path / "runs").glob("*/journal.jsonl")
    before = journal.read_bytes()
    suite(*arguments, *folders, "--budget", "3")
    assert journal.read_bytes().startswith(before)
    (row,) = json.loads((tmp_path / "out" / "suite.json").read_text())["rows"]
    assert row["evaluations"] == 3


def test_nothing_begins_that_would_not_be_over_in_time(tmp_path: Path, write_task: WriteTask) -> None:
    arguments = ("--tasks", write_task(), "--languages", "cuda", "--device", "model", "--seconds", "60")
    result = suite(*arguments, "--minutes", "1", "--runs", tmp_path / "runs", "--out", tmp_path / "out")
    assert "No time is left for" in result.output
    assert json.loads((tmp_path / "out" / "suite.json").read_text())["rows"] == []


def test_what_went_wrong_is_a_row(tmp_path: Path, write_task: WriteTask) -> None:
    arguments = ("--tasks", f"{write_task(kernel='nothing')},nowhere", "--languages", "cuda")
    folders = ("--device", "model", "--runs", tmp_path / "runs", "--out", tmp_path / "out")
    result = suite(*arguments, *folders)
    assert result.exit_code == 0
    problems = [row["problem"] for row in json.loads((tmp_path / "out" / "suite.json").read_text())["rows"]]
    assert len(problems) == 2
    assert any("starting kernel can't be searched from" in problem for problem in problems)
    assert any("neither a folder" in problem for problem in problems)


@pytest.mark.gpu
def test_the_suite_on_a_gpu(tmp_path: Path) -> None:
    folders = ("--runs", tmp_path / "runs", "--out", tmp_path / "out")
    result = suite("--tasks", "softmax", "--budget", "4", "--skip-torch", *folders)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out" / "suite.json").read_text())["rows"]
    assert [row["language"] for row in rows] == ["cuda", "triton"]
    for row in rows:
        assert row["problem"] == ""
        assert 0 < row["floor_share"] <= 1.05
        assert 0 < row["gpu_busy_share"] <= 1
