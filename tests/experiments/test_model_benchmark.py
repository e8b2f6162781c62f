"""From folders of variants, in both of their forms, to tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mctskernel.core.kernel import Language
from mctskernel.experiments.model_benchmark import main, price_variant
from mctskernel.experiments.model_tables import regret
from mctskernel.experiments.variants import measured_kernel, read_variants
from tests.conftest import KERNEL, REFERENCE, TASK_TOML

SCALE = """\
#define COLS 1024
extern "C" __global__ void k(const float* A, const float* B, float* C) {
    for (int i = threadIdx.x; i < COLS; i += NT) {
        C[blockIdx.x * COLS + i] = TIMES * A[blockIdx.x * COLS + i];
    }
}
"""
ELEMENTS = 4096 * 1024


def line(threads: int, us: float, **more: object) -> dict[str, Any]:
    return {
        "name": f"NT{threads}",
        "family": "scale",
        "source": "scale.cu",
        "macros": {"NT": threads, "TIMES": "2.0f"},
        "grid": [4096, 1, 1],
        "block": [threads, 1, 1],
        "buffers": [ELEMENTS, 1, ELEMENTS],
        "us": us,
        "something": "new",
        **more,
    }


def plain_folder(path: Path, lines: list[Mapping[str, Any]]) -> Path:
    path.mkdir()
    (path / "scale.cu").write_text(SCALE)
    (path / "variants.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def extended_folder(path: Path, lines: list[Mapping[str, Any]]) -> Path:
    (path / "task").mkdir(parents=True)
    for name, text in (("task.toml", TASK_TOML), ("reference.py", REFERENCE), ("kernel.cu", KERNEL)):
        (path / "task" / name).write_text(text)
    (path / "twice.cu").write_text(KERNEL)
    (path / "variants.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def extended(block: int, us: float) -> dict[str, Any]:
    return {
        "name": f"BLOCK={block}",
        "family": "double",
        "source": "twice.cu",
        "task": "task",
        "shape": {"n": 1 << 20},
        "tunables": {"BLOCK": block},
        "us": us,
    }


def test_a_recorded_kernel_has_its_tunables_and_the_tasks_buffers(tmp_path: Path) -> None:
    folder = extended_folder(tmp_path / "double", [extended(512, 10.0)])
    (variant,) = read_variants(folder)
    found = measured_kernel(folder, variant)
    assert found.kernel.language is Language.CUDA
    assert found.kernel.macros == {"BLOCK": 512}
    assert found.task.shapes == ({"n": 1 << 20},)
    row = price_variant(folder, variant, "H100")
    assert row.error == ""
    assert row.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 1 << 17


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Two folders, one of each form, one kernel of which doesn't build and one of which was never timed."""
    root = tmp_path_factory.mktemp("benchmark")
    lines = [line(32, 40.0), line(128, 20.0), line(512, 10.0, ncu={"smsp__inst_executed.sum": 1e6})]
    lines += [line(64, 30.0) | {"macros": {"NT": 64}}, line(1, 1.0) | {"us": None, "outcome": "timeout"}]
    plain = plain_folder(root / "plain", lines)
    recorded = extended_folder(root / "double", [extended(32, 9.0), extended(128, 6.0), extended(512, 5.0)])
    return run(plain, recorded, "--out", root / "rows.jsonl"), root / "rows.jsonl"


def test_the_tables_have_every_family_and_what_could_not_be_priced(tables: tuple[Result, Path]) -> None:
    result, rows = tables
    assert result.exit_code == 0, result.output
    assert "| scale  |       3 |" in result.output
    assert "| double |       3 |" in result.output
    assert "- scale NT64: " in result.output
    assert "TIMES" in result.output
    assert "smsp__inst_executed.sum" in result.output
    for title in ("Ranking", "Cost of a kernel"):
        assert f"## {title}" in result.output
    assert len(rows.read_bytes().splitlines()) == 7


def test_tables_can_be_made_again_from_the_rows(tables: tuple[Result, Path]) -> None:
    result, rows = tables
    again = run("--from", rows)
    assert again.output == result.output


def test_a_folder_of_nothing_but_failures_is_an_error(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path / "h100", [line(64, 30.0) | {"macros": {}}])
    result = run(folder)
    assert result.exit_code == 1
    assert "No variant could be priced" in result.output


MEASURED = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_regret_is_the_time_of_the_best_pick_over_the_best_time() -> None:
    backwards = MEASURED[::-1]
    assert [regret(MEASURED, backwards, picks) for picks in (1, 5, 7)] == [7.0, 3.0, 1.0]
    # Among equals the slowest is picked first.
    assert regret(MEASURED, np.ones(7), 1) == 7.0
    assert regret(MEASURED[::-1], np.ones(7), 5) == 3.0
