"""What limits a kernel: `mctskernel evaluate` of a task, `show` of a run, and `evaluate` in Python."""

import json
from pathlib import Path

import pytest

import mctskernel as mk
from mctskernel.config import ConfigError
from mctskernel.core.evaluation import Outcome
from tests.cli.command import flat, mctskernel, searched
from tests.conftest import KERNEL

STRIDED = KERNEL.replace(
    "int i = blockIdx.x * BLOCK + threadIdx.x;", "int i = threadIdx.x * (n / BLOCK) + blockIdx.x;"
).replace("if (i < n)", "if (n % BLOCK) i = blockIdx.x * BLOCK + threadIdx.x;\n    if (i < n)")


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(small_task, tmp_path_factory.mktemp("searched") / "run", 3)


@pytest.fixture
def strided(tmp_path: Path) -> Path:
    file = tmp_path / "strided.cu"
    file.write_text(STRIDED)
    return file


def test_a_tasks_starting_kernel_is_evaluated(small_task: Path) -> None:
    result = mctskernel("evaluate", small_task, "--device", "model")
    assert result.exit_code == 0, result.output
    printed = flat(result.stdout)
    assert "starting kernel of" in printed
    assert "time if halved" in printed
    assert "The true time is expected between" in printed
    assert "Causes" in printed


@pytest.mark.slow
def test_the_json_has_every_term_and_shares_that_add_up(small_task: Path) -> None:
    words = ("evaluate", small_task, "--device", "model", "--architecture", "A100", "--json")
    found = json.loads(mctskernel(*words).stdout)
    assert found["evaluation"]["outcome"] == "ok"
    assert found["evaluation"]["counters"]
    explanation = found["explanation"]
    assert explanation["source"] == "modelled"
    assert sum(term["share"] for term in explanation["terms"]) == pytest.approx(1.0)
    for term in explanation["terms"]:
        assert term["seconds_if_free"] <= term["seconds_if_half"] <= found["seconds"] * (1 + 1e-9)
    assert explanation["low"] < found["seconds"] < explanation["high"]
    assert found["against"] is explanation["compared"] is None


@pytest.mark.slow
def test_two_kernels_of_a_task_are_compared(small_task: Path, strided: Path) -> None:
    words = ("evaluate", small_task, "--against", strided, "--device", "model", "--json")
    found = json.loads(mctskernel(*words).stdout)
    assert found["explanation"]["compared"]["against"] == found["against"]["kernel"] == str(strided)
    assert found["explanation"]["compared"]["sentences"]
    assert found["seconds"] != found["against"]["seconds"]


def test_in_python_a_search_returns_its_run(small_task: Path, tmp_path: Path) -> None:
    found = mk.search(small_task, tmp_path / "run", budget=3, device="model", workers=1, seed=1)
    assert found.view.tree.evaluations == 3
    assert found.view.manifest.configuration.seed == 1
    assert found.best is not None
    assert list(found.counters.index) == [node.id for node in found.view.tree.nodes if node.evaluation]
    with pytest.raises(ConfigError, match="budgett"):
        mk.search(small_task, tmp_path / "other", budgett=3)


def test_in_python_a_kernel_that_is_wrong_is_an_evaluation(small_task: Path, strided: Path) -> None:
    assert mk.evaluate(small_task, strided, device="model").ok
    wrong = mk.evaluate(small_task, KERNEL.replace("2.0f *", "3.0f *"), device="model")
    assert wrong.outcome is Outcome.WRONG_RESULT
    assert wrong.message


def test_a_kernel_that_is_wrong_is_said_and_exits_with_6(small_task: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text(KERNEL.replace("2.0f *", "3.0f *"))
    result = mctskernel("evaluate", small_task, file, "--device", "model")
    assert result.exit_code == 6
    assert "wrong.cu: wrong result" in flat(result.stdout).replace("- ", "-")


def test_a_node_of_a_run_is_explained_from_what_is_recorded(run: Path) -> None:
    child = mctskernel("show", run, "1")
    assert child.exit_code == 0, child.output
    assert "Compared with node 0 (starting kernel)" in flat(child.stdout)
    other = json.loads(mctskernel("show", run, "1", "0", "--json").stdout)
    assert other["kernel"] == "node 0 (starting kernel)"
    assert other["compared"]["against"].startswith("node 1 (")
    assert json.loads(mctskernel("show", run, "0", "--json").stdout)["compared"] is None
