"""Calls in forked processes: what they return, say and receive, and how they end."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.task import TaskError
from mctskernel.profiling import build_cache
from mctskernel.profiling.processes.forked import CallError, ForkedCall, wait_for
from tests.profiling.forked_calls import dies, doubled, fails, hangs


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes import what is called."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def ended(call: ForkedCall[Any]) -> object:
    while not call.collect():
        wait_for([call], 60)
    call.close()
    return call.ended


def test_a_call_says_receives_and_returns(tmp_path: Path) -> None:
    call = ForkedCall(doubled, 20, log=tmp_path / "log")
    call.send(2)
    assert ended(call) == 42
    assert call.said == ["begun"]
    assert (tmp_path / "log").read_text() == "printed\n"


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(TaskError, "because of this"), (ZeroDivisionError, "ZeroDivisionError: because of this")],
)
def test_what_a_call_raises_is_an_error_of_its_own(
    tmp_path: Path, kind: type[Exception], sentence: str
) -> None:
    found = ended(ForkedCall(fails, kind, log=tmp_path / "log"))
    assert isinstance(found, CallError)
    assert str(found) == sentence


def test_a_process_that_dies_is_an_error(tmp_path: Path) -> None:
    found = ended(ForkedCall(dies, log=tmp_path / "log"))
    assert isinstance(found, CallError)
    assert "ended with status -6" in str(found)


def test_closing_ends_a_call_that_hangs(tmp_path: Path) -> None:
    call = ForkedCall(hangs, log=tmp_path / "log")
    while not call.said:
        wait_for([call], 60)
        call.collect()
    call.close()
    with pytest.raises(ProcessLookupError):
        os.kill(call.said[0], 0)


def test_bytecode_is_kept_in_the_cache_where_none_may_be_beside_its_source(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text("")
    code = "from mctskernel.profiling.processes.forked import import_first; import_first(()); import imported"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), build_cache.VARIABLE: str(tmp_path / "builds")}
    subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True)
    (kept,) = tmp_path.rglob("imported.*.pyc")
    assert kept.is_relative_to(tmp_path / "bytecode")
