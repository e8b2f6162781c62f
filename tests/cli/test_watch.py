"""`mctskernel watch` of runs in every state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.cli.errors import BAD_RUN, INTERRUPTED
from mctskernel.core.evaluation import Outcome
from mctskernel.loop import Answer
from mctskernel.report.live import Phase, WatchedRun
from mctskernel.run import write_text
from mctskernel.tree.journal import Journal
from tests.synthetic_run import SyntheticRun, failed, timed, with_configuration


def watch(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, ["watch", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def finish(run: SyntheticRun, node: int) -> None:
    write_text(run.folder.best / "answer.json", msgspec.json.encode(Answer(node, 2.0)).decode())


@pytest.fixture
def run(tmp_path: Path, small_task: Path) -> SyntheticRun:
    told = SyntheticRun(tmp_path / "run", small_task)
    told.edits(0, ("twice as fast", timed(50)), ("broken", failed(Outcome.WRONG_RESULT)))
    return told


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_finished_run_is_summed_up(run: SyntheticRun) -> None:
    finish(run, 1)
    result = watch(run.folder.path)
    assert result.exit_code == 0
    printed = flat(result.stdout)
    assert "2.00x modelled node 1: twice as fast" in printed
    assert "The search has finished." in printed
    assert "2.00x over the starting kernel" in printed


def test_a_killed_run_says_how_to_go_on(run: SyntheticRun) -> None:
    result = watch(run.folder.path)
    assert result.exit_code == 0
    assert "The search was interrupted." in flat(result.stdout)
    assert f"mctskernel resume {run.folder.path}" in flat(result.stdout)


def test_once_shows_the_latest_and_the_way_to_the_best(run: SyntheticRun) -> None:
    with Journal(run.folder.journal):
        result = watch(run.folder.path, "--once")
    printed = flat(result.stdout)
    assert result.exit_code == 0
    assert "3/10 evaluations, best 2.00x (modelled)" in printed
    assert "2 ok, 1 wrong result" in printed
    assert "2 broken wrong result" in printed
    assert "Searching; 0 in flight" in printed


def test_a_torn_last_line_is_awaited(run: SyntheticRun) -> None:
    with run.folder.journal.open("ab") as file:
        file.write(b'{"event":"evaluated","no')
    result = watch(run.folder.path, "--once")
    assert result.exit_code == 0
    assert "3/10 evaluations" in result.stdout


def test_what_has_not_begun_is_not_there_once(tmp_path: Path) -> None:
    result = watch(tmp_path / "none", "--once")
    assert result.exit_code == BAD_RUN
    assert "has not begun" in result.stderr


def test_what_comes_meanwhile_is_followed(run: SyntheticRun) -> None:
    watched = WatchedRun(run.folder.path)
    assert [result.node.id for result in watched.catch_up()] == [0, 1, 2]
    assert list(watched.catch_up()) == []
    run.edits(1, ("faster still", timed(20)))
    (result,) = watched.catch_up()
    assert (result.snapshot.improved_by, result.snapshot.best_speedup) == ("faster still", pytest.approx(5.0))
    assert result.snapshot.evaluations == 4


def test_edits_from_outside_are_waited_for(tmp_path: Path, small_task: Path) -> None:
    told = SyntheticRun(tmp_path / "run", small_task, with_configuration(proposer="outside"))
    watched = WatchedRun(told.folder.path)
    list(watched.catch_up())
    assert watched.phase() is Phase.WAITING
    assert f"mctskernel ask {told.folder.path}" in watched.account(Phase.WAITING)


@pytest.mark.slow
def test_a_run_is_followed_from_before_its_beginning_to_ctrl_c(tmp_path: Path, small_task: Path) -> None:
    path = tmp_path / "run"
    command = (sys.executable, "-m", "mctskernel", "watch", str(path), "--interval", "0.05")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        stuck = threading.Timer(60, process.kill)
        stuck.start()
        assert "has not begun" in process.stderr.readline()
        told = SyntheticRun(path, small_task, with_configuration(proposer="outside"))
        told.edits(0, ("twice as fast", timed(50)))
        while "node 1: twice as fast" not in process.stdout.readline():
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate()
        stuck.cancel()
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in said
    assert said.endswith(f"Stopped watching {path}.\n")
