"""Problems on the command line: searched and solved."""

import json
from pathlib import Path

import msgspec
import pytest

from mctskernel.core.task import RELAXED_PRECISION, Bound
from mctskernel.problems.kernelbench.reference import TOLERANCE
from mctskernel.problems.pytorch_timing import begin_timing, has_pytorch_reference
from mctskernel.profiling.processes.forked import wait_for
from mctskernel.report.baselines import COMPILED, EAGER, Baselines, write_baselines
from mctskernel.report.view import load_view
from tests.cli.command import flat, mctskernel, searched
from tests.problems.kernelbench.problem_files import problem, written

pytestmark = pytest.mark.slow

SUM = problem(
    "return (x * self.scale).sum(1)", "torch.rand(16, 8)", init="self.scale = nn.Parameter(torch.ones(8))"
)


BASELINES = Baselines(
    node=0,
    shape="rows=8",
    start_seconds=1e-3,
    best_seconds=1e-3,
    seconds={EAGER: 4e-3, COMPILED: 2e-3},
    gpu="some GPU",
    torch="2.13",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problem")
    path = written(folder, SUM, "sum.py")
    return searched(path, folder / "run", 1)


def test_a_problem_is_searched_and_solved(run: Path) -> None:
    names = {each.name for each in (run / "task").iterdir()}
    files = "task.toml reference.py problem.py problem.json kernel.cu start_templates.cu"
    assert names == set(files.split())
    found = mctskernel("best", run, "--as", "solution")
    assert found.exit_code == 0
    assert "class ModelNew(Model)" in (run / "solution" / "sum.py").read_text("utf-8")


def test_relaxed_precision_is_told_wherever_a_result_is(tmp_path: Path) -> None:
    path, run = written(tmp_path, SUM, "sum.py"), tmp_path / "run"
    words = ("search", path, "--device", "model", "--budget", "1", "--workers", "1", "--out", run)
    assert "(relaxed precision: " in mctskernel(*words, "--precision", "relaxed").output
    assert json.loads((run / "run.json").read_text("utf-8"))["caveats"] == [RELAXED_PRECISION]
    tolerance = load_view(run).folder.load_task().tolerance
    assert (tolerance.relative, tolerance.element) == (TOLERANCE, Bound(TOLERANCE, TOLERANCE))
    assert "), relaxed precision" in said(run)
    assert mctskernel("best", run, "--as", "solution").exit_code == 0
    assert "Relaxed precision: within" in (run / "solution" / "sum.py").read_text("utf-8")
    refused = mctskernel("search", "softmax", "--precision", "relaxed")
    assert refused.exit_code == 3
    assert "softmax is no benchmark's problem" in refused.output


def test_pytorchs_times_are_told_beside_the_kernel_that_they_were_taken_with(run: Path) -> None:
    write_baselines(run, BASELINES)
    try:
        assert "1.0x over the starting kernel, 4.00x over PyTorch eager, 2.00x over torch.compile, " in said(
            run
        )
        assert "Interleaved with PyTorch 2.13 at rows=8: PyTorch eager 4 ms, torch.compile 2 ms" in said(run)
        write_baselines(run, msgspec.structs.replace(BASELINES, node=7))
        assert "PyTorch" not in said(run)
    finally:
        (run / "pytorch.json").unlink()


def said(run: Path) -> str:
    return flat(mctskernel("show", run).stdout)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_pytorch_is_not_timed(run: Path, tmp_path: Path) -> None:
    assert has_pytorch_reference(load_view(run).folder.load_task())
    call = begin_timing(run / "task", "", 1.0, tmp_path / "log")
    while not call.collect():
        wait_for([call], 60)
    call.close()
    assert str(call.ended) == "PyTorch finds no GPU here."


def test_a_problem_that_is_not_supported_exits_as_a_task_does(tmp_path: Path) -> None:
    path = written(tmp_path, problem("return x, x", "torch.rand(4, 4)"))
    for words in (("search", path), ("check", path), ("new-task", tmp_path / "t", "--from-problem", path)):
        found = mctskernel(*words)
        assert found.exit_code == 3
        assert "returns a tuple" in found.output
