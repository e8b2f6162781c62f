"""Problems on the command line: searched, solved and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.problems.scores import EAGER, START, PyTorchTimes, write_times
from tests.problems.kernelbench.problem_files import problem, written

pytestmark = pytest.mark.slow

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
    names = {each.name for each in (run / "task").iterdir()}
    assert names == {"task.toml", "reference.py", "problem.py", "problem.json", "kernel.cu"}
    found = mctskernel("best", run, "--as", "solution")
    assert found.exit_code == 0
    assert "class ModelNew(Model)" in (run / "solution" / "sum.py").read_text("utf-8")


def test_scores_say_what_is_unknown(run: Path) -> None:
    found = json.loads(mctskernel("scores", run, "--json").stdout)["runs"]
    assert found["correct"] == 1
    assert [each["baseline"] for each in found["against"]] == [START]
    assert "modelled" in found["runs"][0]["note"]
    assert "no benchmark's baseline" in mctskernel("scores", run).stdout


def test_a_time_of_another_gpu_is_not_compared_with(run: Path) -> None:
    write_times(run, PyTorchTimes(1e-3, 2e-3, "some GPU", "2.13"))
    try:
        found = json.loads(mctskernel("scores", run, "--json").stdout)["runs"]
    finally:
        (run / "pytorch.json").unlink()
    assert EAGER not in found["runs"][0]["speedups"]


def test_a_problem_that_is_not_supported_exits_as_a_task_does(tmp_path: Path) -> None:
    path = written(tmp_path, problem("return x, x", "torch.rand(4, 4)"))
    for words in (("search", path), ("check", path), ("new-task", tmp_path / "t", "--from-problem", path)):
        found = mctskernel(*words)
        assert found.exit_code == 3
        assert "returns a tuple" in found.output
