"""From folders of variants, in both of their forms, to tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.kernel import Language
from mctskernel.experiments.model_benchmark import main, price_variant
from mctskernel.experiments.model_tables import Row, by_family, in_one_norm, naive_baselines, regret, terms_of
from mctskernel.experiments.variants import VariantError, measured_kernel, read_variants
from mctskernel.profiling.counters import DRAM_BYTES, INSTRUCTIONS, L2_SECTORS, OCCUPANCY
from mctskernel.profiling.model.price import Term, combined
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
| scale | twice | {ELEMENTS}, 1, {ELEMENTS} |
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


def test_buffers_of_unknown_size_are_an_error(tmp_path: Path) -> None:
    folder = plain_folder(tmp_path / "bare", [line(256, 10.0)], readme="")
    (variant,) = read_variants(folder)
    assert "does not say in `buffers` how large 'A' is" in price_variant(folder, variant, "H100").error


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
    assert len(rows.read_bytes().splitlines()) == 7


def test_tables_can_be_made_again_from_the_rows(tables: tuple[Result, Path]) -> None:
    result, rows = tables
    again = run("--from", rows)
    assert again.output == result.output


def test_folders_and_rows_exclude_each_other(tables: tuple[Result, Path]) -> None:
    assert run().exit_code == 2
    assert run(tables[1].parent, "--from", tables[1]).exit_code == 2


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


def test_families_are_ranked_apart_and_single_kernels_left_out() -> None:
    families = ["a", "b", "a", "b", "a", "b", "c"]
    measured = np.array([1.0, 100.0, 2.0, 200.0, 3.0, 300.0, 5.0])
    modelled = np.array([10.0, 3.0, 20.0, 2.0, 30.0, 1.0, 5.0])
    found = by_family(families, measured, modelled)
    assert {each.family: each.correlation for each in found} == pytest.approx({"a": 1.0, "b": -1.0})
    assert [each.first for each in found] == [1.0, 3.0]


TERMS = st.dictionaries(st.sampled_from(Term), st.floats(0.0, 1e4), min_size=1)


def row(*launches: Mapping[Term, float], gaps: float = 0.0, **more: Any) -> Row:
    terms = [{str(term): value for term, value in launch.items()} for launch in launches]
    return Row(
        folder="f", family="sum", name="n", us=1.0, modelled_us=1.0, launches_us=terms, gaps_us=gaps, **more
    )


@given(st.lists(TERMS, min_size=1, max_size=3), st.floats(0.0, 10.0))
def test_terms_add_up_to_the_modelled_time(launches: list[dict[Term, float]], gaps: float) -> None:
    expected = gaps + sum(
        1e6 * combined({term: 1e-6 * value for term, value in launch.items()}) for launch in launches
    )
    found = terms_of([row({Term.FMA: 7.0}), row(*launches, gaps=gaps)]).microseconds()
    assert found[1] == pytest.approx(expected)
    assert found[0] == pytest.approx(7.0)


def test_a_term_is_left_out_of_every_launch() -> None:
    terms = terms_of([row({Term.FMA: 3.0, Term.LATENCY: 50.0}, {Term.FMA: 4.0, Term.LATENCY: 1.0}, gaps=2.0)])
    assert terms.microseconds(without=(Term.LATENCY,)) == pytest.approx([9.0])


@pytest.mark.parametrize(("norm", "expected"), [(1.0, 7.0), (2.0, 5.0), (math.inf, 4.0)])
def test_one_norm_goes_from_the_sum_to_the_largest_term(norm: float, expected: float) -> None:
    terms = terms_of([row({Term.FMA: 3.0, Term.DRAM: 4.0, Term.LAUNCH: 2.0, Term.TAIL: 1.0})])
    assert terms.microseconds(in_one_norm(norm)) == pytest.approx([expected + 3.0])


def test_baselines_rank_by_their_names() -> None:
    counters = {OCCUPANCY: 50.0, DRAM_BYTES: 640.0, L2_SECTORS: 10.0, INSTRUCTIONS: 7.0}
    launch = {Term.FMA: 3.0, Term.DRAM: 2.0, Term.ISSUE: 99.0}
    found = naive_baselines([row(launch, launch, counters=counters)])
    assert [value.tolist() for value in found.values()] == [[-50.0], [640.0], [10.0], [7.0], [6.0]]
