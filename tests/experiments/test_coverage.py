"""How far a folder of problems gets: its table, and a call that continues an earlier one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.core.kernel import Language
from mctskernel.experiments.coverage import Row, Start, document, main
from tests.problems.kernelbench.problem_files import problem, written


def test_the_table_has_a_line_for_each_problem_and_every_failure_s_reason() -> None:
    starts = (Start(Language.CUDA, "ok", 0.0025), Start(Language.TRITON, "wrong result: 'out'"))
    valid = Row("level1/19", 1.5, 5 << 28, 3 << 30, True, starts, True, 30, 10.0, 16.0, 2.0)
    text = document([valid, Row("level1/21", 4.0, reason="It took too long.")], 3, "--seed 0")
    line = next(line for line in text.splitlines() if line.startswith("| level1/19"))
    assert line.replace("|", " ").split()[1:] == "1.5 1.34 3.22 2.5 wrong yes 30 3.00 16.0 2.00x".split()
    assert (
        "2 of 3 problems covered, 1 with a starting kernel, 1 right in cuda, 0 right in triton, 1 with"
        in text
    )
    assert "- level1/19: triton start: wrong result: 'out'" in text
    assert "at most 4.0 s (level1/21) and 1.34 GB (level1/19)" in text
    assert "- level1/21: It took too long." in text


@pytest.mark.slow
def test_a_covered_problem_is_not_covered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    written(folder, problem("return x.relu()", "torch.rand(64, 40)"), "1_relu.py")
    written(folder, problem("return x, x", "torch.rand(64, 40)"), "2_pair.py")
    (folder / "notes.py").write_text("pass\n")
    words = [str(folder), "--device", "model", "--budget", "1", "--jobs", "2", "--out", str(tmp_path / "out")]
    first = CliRunner().invoke(main, words, catch_exceptions=False)
    assert "2 of 2 problems covered, 1 with a starting kernel, 1 right in cuda" in first.output
    assert "- problems/2_pair: The forward of 2_pair.py returns a tuple" in first.output
    monkeypatch.setattr(subprocess, "Popen", None)
    second = CliRunner().invoke(main, words, catch_exceptions=False)
    assert second.output in first.output
