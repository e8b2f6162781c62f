"""`mctskernel watch` of runs in every state."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from mctskernel.answer import Answer
from mctskernel.cli import main
from mctskernel.cli.errors import BAD_RUN, INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.evaluation import Outcome
from mctskernel.report.watched import Phase, WatchedRun
from mctskernel.report.watching import page
from mctskernel.run import write_text
from mctskernel.tree.journal import Journal
from tests.told_run import ToldRun, failed, timed, with_configuration


def watch(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, ["watch", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def finish(run: ToldRun, node: int) -> None:
    write_text(run.folder.best / "answer.json", msgspec.json.encode(Answer(node, 2.0)).decode())


@pytest.fixture
def run(tmp_path: Path, small_task: Path) -> ToldRun:
    told = ToldRun(tmp_path / "run", small_task)
    told.edits(0, ("twice as fast", timed(50)), ("broken", failed(Outcome.WRONG_RESULT)))
    return told


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_finished_run_is_summed_up(run: ToldRun) -> None:
    finish(run, 1)
    result = watch(run.folder.path)
    assert result.exit_code == 0
    printed = flat(result.stdout)
    assert "2.00x modelled node 1: twice as fast" in printed
    assert "The search is over." in printed
    assert "2.00x over the starting kernel" in printed


def test_a_killed_run_says_how_to_go_on(run: ToldRun) -> None:
    result = watch(run.folder.path)
    assert result.exit_code == 0
    assert "it was cut off." in flat(result.stdout)
    assert f"mctskernel resume {run.folder.path}" in flat(result.stdout)


def test_once_shows_the_latest_and_the_way_to_the_best(run: ToldRun) -> None:
    with Journal(run.folder.journal):
        result = watch(run.folder.path, "--once")
    printed = flat(result.stdout)
    assert result.exit_code == 0
    assert "3/10 evaluations, best 2.00x (modelled)" in printed
    assert "2 ok, 1 wrong result" in printed
    assert "2 broken wrong result" in printed
    assert "Searching; 0 in flight" in printed


def test_a_torn_last_line_is_awaited(run: ToldRun) -> None:
    with run.folder.journal.open("ab") as file:
        file.write(b'{"event":"evaluated","no')
    result = watch(run.folder.path, "--once")
    assert result.exit_code == 0
    assert "3/10 evaluations" in result.stdout


def test_only_failures_are_told_as_such(tmp_path: Path, small_task: Path) -> None:
    told = ToldRun(tmp_path / "run", small_task, root=failed())
    result = watch(told.folder.path)
    assert result.exit_code == 0
    assert "The starting kernel can't be searched from (build error): It doesn't build." in flat(
        result.stdout
    )


def test_what_has_not_begun_is_not_there_once(tmp_path: Path) -> None:
    result = watch(tmp_path / "none", "--once")
    assert result.exit_code == BAD_RUN
    assert "has not begun" in result.stderr


def test_another_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = watch(tmp_path)
    assert result.exit_code == BAD_RUN
    assert "is not a run" in result.stderr


def test_a_newer_run_is_refused_with_a_sentence(run: ToldRun) -> None:
    text = run.folder.manifest.read_text().replace('"schema_version": 1', '"schema_version": 9')
    run.folder.manifest.write_text(text)
    result = watch(run.folder.path)
    assert result.exit_code == BAD_RUN
    assert "schema version 9" in result.stderr


def test_what_comes_meanwhile_is_followed(run: ToldRun) -> None:
    watched = WatchedRun(run.folder.path)
    assert [result.node.id for result in watched.catch_up()] == [0, 1, 2]
    assert list(watched.catch_up()) == []
    run.edits(1, ("faster still", timed(20)))
    (result,) = watched.catch_up()
    assert (result.snapshot.improved_by, result.snapshot.best_speedup) == ("faster still", pytest.approx(5.0))
    assert result.snapshot.evaluations == 4


def test_edits_from_outside_are_waited_for(tmp_path: Path, small_task: Path) -> None:
    told = ToldRun(tmp_path / "run", small_task, with_configuration(proposer="outside"))
    watched = WatchedRun(told.folder.path)
    list(watched.catch_up())
    assert watched.phase() is Phase.WAITING
    assert f"mctskernel ask {told.folder.path}" in watched.account(Phase.WAITING)


def test_texts_of_candidates_give_the_terminal_no_orders(tmp_path: Path, small_task: Path) -> None:
    told = ToldRun(tmp_path / "run", small_task)
    told.edits(0, ("\x1b]0;title\x07 [bold]no markup[/]", timed(50)))
    watched, file = WatchedRun(told.folder.path), io.StringIO()
    results = list(watched.catch_up())
    PlainConsole(file=file, force_terminal=True, width=120).print(page(watched, results, Phase.SEARCHING))
    assert "\x1b]0" not in file.getvalue()
    assert "[bold]no markup[/]" in file.getvalue()


def test_a_run_is_followed_from_before_its_beginning_to_ctrl_c(tmp_path: Path, small_task: Path) -> None:
    path = tmp_path / "run"
    command = (sys.executable, "-m", "mctskernel", "watch", str(path), "--interval", "0.05")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        stuck = threading.Timer(60, process.kill)
        stuck.start()
        assert "has not begun" in process.stderr.readline()
        told = ToldRun(path, small_task, with_configuration(proposer="outside"))
        told.edits(0, ("twice as fast", timed(50)))
        while "node 1: twice as fast" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate()
        stuck.cancel()
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in said
    assert said.endswith(f"Stopped watching {path}.\n")
