"""From folders of variants to tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from mctskernel.core.kernel import Language
from mctskernel.experiments.model_benchmark import main, price_variant, regret
from mctskernel.experiments.variants import kernel_of, read_variants, task_at
from tests.conftest import KERNEL, REFERENCE, TASK_TOML


def a_folder(path: Path, lines: list[Mapping[str, Any]]) -> Path:
    (path / "task").mkdir(parents=True)
    for name, text in (("task.toml", TASK_TOML), ("reference.py", REFERENCE), ("kernel.cu", KERNEL)):
        (path / "task" / name).write_text(text)
    (path / "twice.cu").write_text(KERNEL)
    (path / "variants.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def variant(block: int, us: float | None, **more: object) -> dict[str, Any]:
    return {
        "name": f"BLOCK={block}",
        "family": "double",
        "source": "twice.cu",
        "task": "task",
        "shape": {"n": 1 << 20},
        "tunables": {"BLOCK": block},
        "us": us,
        "something": "new",
        **more,
    }


def test_a_recorded_kernel_has_its_tunables_and_the_tasks_buffers(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "double", [variant(512, 10.0)])
    (read,) = read_variants(folder)
    kernel = kernel_of(folder, read)
    assert kernel.language is Language.CUDA
    assert kernel.macros == {"BLOCK": 512}
    assert task_at(folder / read.task, read.language, read.shape).shapes == ({"n": 1 << 20},)
    row = price_variant(folder, read, "H100")
    assert row.error == ""
    assert row.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 1 << 17


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_the_tables_have_every_family_and_what_could_not_be_priced(tmp_path: Path) -> None:
    """Two families, one kernel of which has no such tunable and one of which was never timed."""
    lines = [variant(32, 9.0), variant(128, 6.0), variant(512, 5.0, ncu={"smsp__inst_executed.sum": 1e6})]
    failed = {name: value for name, value in variant(1, None, outcome="timeout").items() if name != "shape"}
    lines += [variant(64, 7.0, tunables={"TILE": 1}), failed]
    lines += [variant(block, 300.0 / block, family="again") for block in (64, 256)]
    result = run(a_folder(tmp_path / "double", lines))
    assert result.exit_code == 0, result.output
    assert "| double |       3 |" in result.output
    assert "| again  |       2 |" in result.output
    assert "- double BLOCK=64: There is no tunable 'TILE'" in result.output
    assert {"smsp__inst_executed.sum", "Ranking"} <= set(result.output.split())
    result = run(a_folder(tmp_path / "h100", [variant(64, 30.0, tunables={"TILE": 1})]))
    assert (result.exit_code, "No variant could be priced" in result.output) == (1, True)


MEASURED = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_regret_is_the_time_of_the_best_pick_over_the_best_time() -> None:
    assert [regret(MEASURED, MEASURED[::-1], picks) for picks in (1, 5, 7)] == [7.0, 3.0, 1.0]
    equals = regret(MEASURED, np.ones(7), 1), regret(MEASURED[::-1], np.ones(7), 5)
    assert equals == (7.0, 3.0), "among equals the slowest is picked first"
