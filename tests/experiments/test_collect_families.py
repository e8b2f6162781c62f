"""The families that are to be recorded: each has kernels enough that could run, and one is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.edits.rule import Limits
from mctskernel.experiments.collect_families import FAMILIES, main
from mctskernel.experiments.tunables import combinations, tunables, with_tunables
from mctskernel.experiments.variants import read_variants


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_many_kernels_that_could_run(name: str) -> None:
    family = FAMILIES[name]
    task = load_task(family.task_folder, family.language)
    kernel = Kernel(family.file.read_text(encoding="utf-8"), family.language)
    limits = Limits(task, task.search_shapes)
    tried = [with_tunables(kernel, values) for values in combinations(kernel, family.space, most=150, seed=0)]
    assert limits.allow(kernel)
    assert len({each.identity for each in tried if limits.allow(each)}) > 50
    assert set(family.space) == set(tunables(kernel))


@pytest.mark.slow
def test_a_family_is_recorded_and_gone_on_with(tmp_path: Path) -> None:
    arguments = ["--device", "model", "--workers", "1", "--families", "gemv_cuda", "--out", str(tmp_path)]
    assert CliRunner().invoke(main, [*arguments, "--limit", "1"]).exit_code == 0
    assert CliRunner().invoke(main, [*arguments, "--limit", "2"]).exit_code == 0
    lines = list(read_variants(tmp_path / "gemv_cuda"))
    assert {each.family for each in lines} == {"gemv_cuda"}
    assert [each.outcome for each in lines] == [Outcome.OK, Outcome.OK]
