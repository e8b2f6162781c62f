"""From folders of variants, in both of their forms, to tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.core.kernel import Language
from mctskernel.experiments.model.priced_kernels import price_variant, read_rows
from mctskernel.experiments.model_benchmark import main
from mctskernel.experiments.subjects.measured_kernels import measured_kernel
from mctskernel.variants import Variant, VariantError, read_variants
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
README = f"""\
# Recorded kernels

| family | what | floats in A, B, C |
|---|---|---|
| other | not these | 1, 1, 1 |
| scale | twice | {ELEMENTS}, 1, 4096 x 1Ki |
"""


def line(threads: int, us: float, **more: object) -> dict[str, Any]:
    return {
        "name": f"NT{threads}",
        "family": "scale",
        "source": "scale.cu",
        "macros": {"NT": threads, "TIMES": "2.0f"},
        "grid": [4096, 1, 1],
        "block": [threads, 1, 1],
        "us": us,
        "something": "new",
        **more,
    }


def plain_folder(path: Path, lines: list[Mapping[str, Any]], readme: str = README) -> Path:
    path.mkdir()
    (path / "scale.cu").write_text(SCALE)
    (path / "variants.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if readme:
        (path / "README.md").write_text(readme)
    return path


def sizes(folder: Path) -> dict[str, int]:
    (variant,) = read_variants(folder)
    task = measured_kernel(folder, variant).task
    return {each.name: each.nbytes(variant.shape) for each in (*task.inputs, *task.outputs)}


def test_buffers_are_as_large_as_the_readme_says(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path / "h100", [line(256, 10.0)])
    assert sizes(folder) == {"A": 4 * ELEMENTS, "B": 4, "C": 4 * ELEMENTS}


@pytest.mark.parametrize(
    "buffers",
    [
        {"A": {"elements": 8, "dtype": "bfloat16"}, "B": {"elements": 3}, "C": {"elements": 5}},
        {"A": 4, "B": 3, "C": 5},
        [4, 3, 5],
    ],
)
def test_a_lines_own_buffers_come_before_the_readme(tmp_path: Path, buffers: object) -> None:
    folder = plain_folder(tmp_path / "h100", [line(256, 10.0, buffers=buffers)])
    assert sizes(folder) == {"A": 16, "B": 12, "C": 20}


def test_without_any_word_of_them_buffers_are_what_the_blocks_touch(tmp_path: Path) -> None:
    known = plain_folder(tmp_path / "known", [line(256, 10.0)])
    bare = plain_folder(tmp_path / "bare", [line(256, 10.0)], readme="")
    (variant,) = read_variants(known)
    assert not measured_kernel(bare, variant).sized
    said, found = (price_variant(folder, variant, "H100") for folder in (known, bare))
    assert (said.error, found.error) == ("", "")
    assert said.modelled_us is not None
    assert found.modelled_us == pytest.approx(said.modelled_us, rel=1e-3)


def test_a_plain_kernel_is_priced_with_its_macros_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100" / "add.cu").write_text(
        'extern "C" __global__ void add(float* out, const float* in, int n, float by) {\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) { out[i] = in[i] + by; }\n}\n"
    )
    variant = Variant(
        name="add",
        family="add",
        source="add.cu",
        us=1.0,
        kernel="add",
        grid=(4,),
        block=(256,),
        arguments=("out", "in", 1000, 1.5),
    )
    row = price_variant(tmp_path / "h100", variant, "H100")
    assert row.error == ""
    assert row.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 125


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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": "gone.cu"}, "can't be read"),
        ({"macros": {"NT": 256, "TIMES": "two"}}, "two"),
        ({"block": [2048, 1, 1]}, "2048"),
        ({"language": "triton"}, "plan stands in the source"),
    ],
)
def test_what_cannot_be_priced_says_why(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    folder = plain_folder(tmp_path / "h100", [line(256, 10.0) | change])
    (variant,) = read_variants(folder)
    row = price_variant(folder, variant, "H100")
    assert sentence in row.error
    assert row.modelled_us is None


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path / "h100", [line(256, 10.0), {"name": 1}])
    with pytest.raises(VariantError, match=r"variants\.jsonl, line 2"):
        list(read_variants(folder))


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
    for title in ("Ranking", "Without each term", "Without a model", "Cost of a kernel"):
        assert f"## {title}" in result.output
    assert len(list(read_rows(rows))) == 7


def test_tables_can_be_made_again_from_the_rows(tables: tuple[Result, Path]) -> None:
    result, rows = tables
    again = run("--from", rows)
    assert again.output == result.output


def test_a_torn_last_row_is_left_out(tables: tuple[Result, Path], tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(tables[1].read_bytes()[:-20])
    assert len(list(read_rows(torn))) == 6


def test_one_family_can_be_asked_for(tables: tuple[Result, Path]) -> None:
    result = run("--from", tables[1], "--family", "double")
    assert "double" in result.output
    assert "scale" not in result.output


def test_folders_and_rows_exclude_each_other(tables: tuple[Result, Path]) -> None:
    assert run().exit_code == 2
    assert run(tables[1].parent, "--from", tables[1]).exit_code == 2


def test_a_folder_of_nothing_but_failures_is_an_error(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path / "h100", [line(64, 30.0) | {"macros": {}}])
    result = run(folder)
    assert result.exit_code == 1
    assert "No variant could be priced" in result.output


def test_a_single_kernel_has_a_cost_and_no_ranking(tables: tuple[Result, Path], tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    first.write_bytes(tables[1].read_bytes().splitlines(keepends=True)[0])
    result = run("--from", first)
    assert result.exit_code == 0, result.output
    assert "Cost of a kernel" in result.output
    assert "Ranking" not in result.output


def test_three_families_are_fitted_and_tested_in_turn(tables: tuple[Result, Path], tmp_path: Path) -> None:
    rows = [row for row in read_rows(tables[1]) if row.modelled_us]
    copies = [msgspec.structs.replace(row, family=f"{row.family} {copy}") for row in rows for copy in "ab"]
    alone = msgspec.structs.replace(rows[0], family="alone")
    more = tmp_path / "more.jsonl"
    more.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in (*copies, alone)))
    result = run("--from", more)
    assert result.exit_code == 0, result.output
    (table,) = (part for part in result.output.split("## ") if part.startswith("Fitted on some families"))
    assert all(f"| {family} " in table for family in ("scale a", "scale b", "double a", "double b", "mean"))
    assert "alone" not in table
