"""Problems on the command line: searched, solved and scored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.problems.kernelbench.pytorch_times import PyTorchTimes, write_times
from mctskernel.problems.run_scores import EAGER, START, RunScore, score_results
from tests.problems.kernelbench.problem_files import problem, written

SUM = problem(
    "return (x * self.scale).sum(1)", "torch.rand(16, 8)", init="self.scale = nn.Parameter(torch.ones(8))"
)


def mctskernel(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problem")
    path = written(folder, SUM, "sum.py")
    found = mctskernel(
        "search", path, "--device", "model", "--budget", "1", "--workers", "1", "--out", folder / "run"
    )
    assert found.exit_code == 0, found.output
    return folder / "run"


def test_a_problem_is_searched_and_solved(run: Path) -> None:
    assert (run / "task" / "problem.json").is_file()
    found = mctskernel("solution", run)
    assert found.exit_code == 0
    assert "class ModelNew(Model)" in (run / "solution" / "sum.py").read_text("utf-8")


def test_scores_say_what_is_not_known(run: Path) -> None:
    found = json.loads(mctskernel("scores", run, "--json").stdout)["runs"]
    assert found["correct"] == 1
    assert [each["baseline"] for each in found["against"]] == [START]
    assert "modelled" in found["runs"][0]["remark"]
    assert "no benchmark's baseline" in mctskernel("scores", run).stdout


def test_in_a_folder_of_runs_those_of_problems_are_scored(run: Path, tmp_path: Path) -> None:
    for name in ("problem", "other"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "other" / "task" / "problem.json").unlink()
    found = mctskernel("scores", tmp_path)
    assert "1 of 1 correct" in found.stdout
    assert "1 of 2 runs are of no benchmark's problem" in found.stderr
    assert mctskernel("scores", tmp_path / "other").exit_code == 3


def test_a_time_of_another_gpu_is_not_compared_with(run: Path) -> None:
    write_times(run, PyTorchTimes(1e-3, 2e-3, "some GPU", "2.13"))
    try:
        found = json.loads(mctskernel("scores", run, "--json").stdout)["runs"]
    finally:
        (run / "pytorch.json").unlink()
    assert EAGER not in found["runs"][0]["speedups"]


def test_a_problem_that_is_not_supported_exits_as_a_task_does(tmp_path: Path) -> None:
    path = written(tmp_path, problem("return x, x", "torch.rand(4, 4)"))
    for words in (
        ("search", path),
        ("check", path),
        ("explain", path),
        ("new-task", tmp_path / "t", "--from-problem", path),
    ):
        found = mctskernel(*words)
        assert found.exit_code == 3
        assert "gives a tuple" in found.output


def test_a_task_folder_is_written_to_look_at(tmp_path: Path) -> None:
    path = written(tmp_path, SUM, "sum.py")
    found = mctskernel("new-task", tmp_path / "task", "--from-problem", path)
    assert found.exit_code == 0, found.output
    names = {each.name for each in (tmp_path / "task").iterdir()}
    assert names == {"task.toml", "reference.py", "problem.py", "problem.json", "kernel.cu"}


def test_scores_need_something_to_score() -> None:
    assert mctskernel("scores").exit_code == 2


def test_fast_p_counts_every_run_and_the_mean_those_that_are_right() -> None:
    runs = [
        RunScore("a", "KernelBench", "a", "gpu", True, 1e-3, {EAGER: 4.0}),
        RunScore("b", "KernelBench", "b", "gpu", True, 1e-3, {EAGER: 1.0}),
        RunScore("c", "KernelBench", "c", "gpu", False, None, {}),
        RunScore("d", "KernelBench", "d", "gpu", True, 1e-3, {}),
    ]
    found = score_results(EAGER, [each.scored(EAGER) for each in runs])
    assert {each.threshold: each.share for each in found.fast} == {
        0.0: 0.75,
        0.5: 0.5,
        1.0: 0.25,
        1.5: 0.25,
        2.0: 0.25,
    }
    assert found.geomean == pytest.approx(2.0)
    assert found.known == 2
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
