"""`mctskernel show` of diffs, for readers and for `patch`, and `mctskernel watch`."""

import io
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mctskernel.answer import Answer
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.evaluation import Outcome
from mctskernel.report.terminal import print_diff
from mctskernel.report.view import load_view
from mctskernel.run import write_text
from mctskernel.tree.journal import Journal
from tests.cli.command import mctskernel
from tests.synthetic_run import SyntheticRun, failed, timed

show = partial(mctskernel, "show")


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    synthetic = SyntheticRun(tmp_path_factory.mktemp("diffed") / "run", small_task)
    (first, _) = synthetic.edits(0, ("twice as fast", timed(50)), ("broken\n\x1b[2J", failed(Outcome.RACE)))
    synthetic.edits(first, ("faster still", timed(20)))
    return synthetic.folder.path


def test_the_parent_is_what_a_node_is_compared_with(run: Path) -> None:
    result = show(run, 3, "--diff")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "--- node 1: twice as fast (50 us modelled), the parent"
    assert lines[1] == "+++ node 3: faster still (20 us modelled)"
    assert "+#define MADE_3 1" in lines
    assert "+#define MADE_1 1" not in lines


def test_any_two_nodes_are_compared(run: Path) -> None:
    start = show(run, 0, 3).stdout
    assert "node 0: starting kernel (100 us modelled)" in start
    assert "+#define MADE_1 1" in start
    between = show(run, 3, 2).stdout
    assert "-#define MADE_3 1" in between
    assert "+#define MADE_2 1" in between
    assert "(race)" in between
    assert "The two sources are equal." in show(run, 1, 1).stdout


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_elsewhere_than_in_a_terminal_it_is_a_patch(run: Path, tmp_path: Path) -> None:
    view, kernel = load_view(run), tmp_path / "kernel.cu"
    kernel.write_text(view.source(0))
    (tmp_path / "edit.patch").write_text(show(run, 0, 3).stdout)
    subprocess.run(("patch", "-s", str(kernel), str(tmp_path / "edit.patch")), check=True)
    assert kernel.read_text() == view.source(3)


def shown(run: Path, before: int, after: int, width: int = 100) -> str:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=width, color_system="truecolor")
    print_diff(console, load_view(run), (before, after))
    return file.getvalue()


def test_in_a_terminal_it_is_coloured(run: Path) -> None:
    assert "#define MADE_3 1" in re.sub(r"\x1b\[[0-9;]*m", "", shown(run, 1, 3))
    assert "\x1b[" in shown(run, 1, 3)


def test_watch_prints_improvements_until_the_search_is_over(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    journal = Journal(copy / "journal.jsonl")
    monkeypatch.setattr("mctskernel.cli.watch.time.sleep", lambda _: journal.close())
    result = mctskernel("watch", copy)
    assert result.exit_code == 0, result.output
    assert "5.0x modelled  node 3: faster still" in result.stdout
    assert "5.0x over the starting kernel" in result.stdout


def test_an_answer_that_the_tree_has_outgrown_is_no_answer(small_task: Path, tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "run", small_task)
    answer = synthetic.folder.best / "answer.json"
    write_text(answer, msgspec.json.encode(Answer(0, 1.0, evaluations=1)).decode())
    assert "Final validation" in show(synthetic.folder.path).stdout
    synthetic.edits(0, ("twice as fast", timed(50)))
    printed = " ".join(show(synthetic.folder.path).stdout.split())
    assert "2.0x over the starting kernel" in printed
    assert "has not passed the final validation" in printed
