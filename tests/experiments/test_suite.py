"""The suite: tables from searches and times, and a call that continues an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.core.kernel import Language
from mctskernel.experiments import suite
from mctskernel.experiments.json_lines import append_line
from mctskernel.experiments.suite import Report, SearchCost, Searched, TaskTimes, document, main, read_times

COST = SearchCost(10, {"build": 0.1, "time": 0.3}, 0.4, 5.0, 0.6)
SAMPLES = {
    "eager": (3e-4,) * 5,
    "max-autotune": (2e-4,) * 5,
    "cuda start": (8e-4,) * 5,
    "cuda best": (1e-4,) * 5,
    "triton start": (4e-4,) * 5,
    "triton best": (2e-4,) * 5,
}
TIMES = TaskTimes("softmax", {"rows=8": SAMPLES}, 8e-5, {"gpu": "H100"})


def cells(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip("| ").startswith(first))
    return [cell.strip() for cell in line.split("|")][1:-1]


def test_the_tables_have_ratios_over_the_best_kernel_of_any_language() -> None:
    searches = [
        Searched("softmax", Language.CUDA, 8e-4, 1e-4, 8.0, COST),
        Searched("sum", Language.CUDA, problem="Its start is wrong."),
    ]
    text = document(Report(searches, [TIMES]))
    assert cells(text.partition("Beside PyTorch")[0], "softmax")[2:6] == ["800.0", "100.0", "8.00x", "10"]
    timed = cells(text.partition("Beside PyTorch")[2], "softmax")
    assert timed[1:4] == ["cuda", "100.0", "8.000 (8.000 to 8.000)"]
    assert [each.split()[0] for each in timed[4:]] == ["3.000", "2.000", "80%"]
    assert "eager takes 3.000 times as long over 1 tasks, torch.compile takes 2.000" in text
    assert "- sum: Its start is wrong." in text


def test_the_last_row_of_a_task_holds_and_a_timed_one_is_not_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    append_line(rows, TaskTimes("softmax", problem="It ended with status 1."))
    append_line(rows, TIMES)
    assert read_times(rows) == {"softmax": TIMES}
    monkeypatch.setattr(suite.subprocess, "run", None)
    suite.time_task(rows, "softmax", [tmp_path])


@pytest.mark.slow
def test_a_second_call_searches_nothing_again(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--tasks", str(small_task), "--languages", "cuda", "--device", "model", "--budget", "2"]
    words += ["--workers", "1", "--out", str(tmp_path)]
    first = CliRunner().invoke(main, words, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert len(read_times(tmp_path / "rows.jsonl")) == 0
    monkeypatch.setattr(suite, "run_search", None)
    assert CliRunner().invoke(main, words, catch_exceptions=False).output == first.output
