"""`mctskernel explain` as a user types it, of a task and of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from tests.conftest import KERNEL

STRIDED = KERNEL.replace(
    "int i = blockIdx.x * BLOCK + threadIdx.x;", "int i = threadIdx.x * (n / BLOCK) + blockIdx.x;"
).replace("if (i < n)", "if (n % BLOCK) i = blockIdx.x * BLOCK + threadIdx.x;\n    if (i < n)")


def mctskernel(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "run"
    words = ("search", small_task, "--device", "model", "--budget", "3", "--workers", "1", "--out", folder)
    assert mctskernel(*words).exit_code == 0
    return folder


@pytest.fixture
def strided(tmp_path: Path) -> Path:
    file = tmp_path / "strided.cu"
    file.write_text(STRIDED)
    return file


def test_a_tasks_starting_kernel_is_explained(small_task: Path) -> None:
    result = mctskernel("explain", small_task)
    assert result.exit_code == 0, result.output
    printed = flat(result.stdout)
    assert "starting kernel of" in printed
    assert "modelled Modelled at" in printed
    assert "time if halved" in printed
    assert "The true time is expected between" in printed
    assert "Causes" in printed


@pytest.mark.slow
def test_the_json_has_every_term_and_shares_that_add_up(small_task: Path) -> None:
    found = json.loads(mctskernel("explain", small_task, "--architecture", "A100", "--json").stdout)
    assert found["source"] == "modelled"
    assert sum(term["share"] for term in found["terms"]) == pytest.approx(1.0)
    for term in found["terms"]:
        assert term["seconds_if_free"] <= term["seconds_if_half"] <= found["seconds"] * (1 + 1e-9)
    assert found["low"] < found["seconds"] < found["high"]
    assert found["compared"] is None


@pytest.mark.slow
def test_two_kernels_of_a_task_are_compared(small_task: Path, strided: Path) -> None:
    words = ("explain", small_task, "--against", strided, "--json")
    found = json.loads(mctskernel(*words).stdout)["compared"]
    assert found["against"] == str(strided)
    assert found["comparison"]["source"] == "modelled"
    assert found["sentences"]
    same = json.loads(
        mctskernel("explain", small_task, "--kernel", strided, "--against", strided, "--json").stdout
    )
    assert same["kernel"] == str(strided)
    assert same["compared"]["is_tie"]
    assert same["compared"]["comparison"]["moved"] == []


def test_a_node_of_a_run_is_explained_from_what_is_recorded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mctskernel.cli.explain.model_kernels", None)
    best = mctskernel("explain", run)
    assert best.exit_code == 0, best.output
    assert "Modelled at" in flat(best.stdout)
    child = mctskernel("explain", run, "1")
    assert child.exit_code == 0, child.output
    assert "Compared with node 0 (starting kernel)" in flat(child.stdout)
    other = json.loads(mctskernel("explain", run, "0", "--against", "1", "--json").stdout)
    assert other["kernel"] == "node 0 (starting kernel)"
    assert other["compared"]["against"].startswith("node 1 (")
    assert json.loads(mctskernel("explain", run, "0", "--json").stdout)["compared"] is None


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("{run}", "99"), 4, "no node 99"),
        (("{run}", "0", "--against", "99"), 4, "no node 99"),
        (("{run}", "--against", "kernel.cu"), 2, "is the number of a node"),
        (("{run}", "--kernel", "kernel.cu"), 2, "is a run"),
        (("{task}", "3"), 2, "is not a run"),
        (("nothing-of-the-kind",), 3, "There is no task"),
        (("{task}", "--kernel", "missing.cu"), 3, "missing.cu can't be read"),
        (("{task}", "--kernel", "kernel.ptx"), 3, "is no kernel"),
        (("{task}", "--language", "triton"), 3, "kernel.py"),
    ],
)
def test_a_mistake_is_a_sentence(
    run: Path, small_task: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    result = mctskernel("explain", *(word.format(run=run, task=small_task) for word in words))
    assert result.exit_code == code
    assert sentence in flat(result.stderr.replace("│", " "))
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_kernel_that_is_wrong_has_nothing_to_explain(small_task: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text(KERNEL.replace("2.0f *", "3.0f *"))
    result = mctskernel("explain", small_task, "--kernel", file)
    assert result.exit_code == 3
    assert "has no time to explain: wrong result" in flat(result.stderr)
