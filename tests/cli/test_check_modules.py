"""`mctskernel check` of PyTorch modules."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.cli.errors import REFUSED

pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # imports PyTorch

CORPUS = Path(__file__).parents[1] / "gauntlet" / "pytorch"


def test_verdicts_are_told_as_json_and_a_refusal_by_the_exit_code() -> None:
    files = ("references/matmul.py", "honest/matmul_blocked.py", "cheats/nan_output.py")
    arguments = ["check", *(str(CORPUS / each) for each in files), "--runs", "5", "--seed", "7", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == REFUSED, result.output
    honest, cheat = map(json.loads, result.output.splitlines())
    assert honest["evaluation"]["outcome"] == "ok" and honest["seed"] == 7
    assert cheat["evaluation"]["outcome"] == "wrong result" and cheat["speedup"] is None
    assert cheat["evaluation"]["guard"] == "comparison with the reference"
