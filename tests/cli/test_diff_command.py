"""`mctskernel diff`: what an edit changed, for eyes and for `patch`."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.cli import main
from mctskernel.cli.errors import BAD_RUN, USAGE
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.evaluation import Outcome
from mctskernel.report.source_diff import Compared, hunks, print_diff
from mctskernel.report.view import load_view
from tests.told_run import ToldRun, failed, timed


def diff(*words: str | Path | int) -> Result:
    result = CliRunner().invoke(main, ["diff", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    told = ToldRun(tmp_path_factory.mktemp("diffed") / "run", small_task)
    (first, _) = told.edits(0, ("twice as fast", timed(50)), ("broken\n\x1b[2J", failed(Outcome.RACE)))
    told.edits(first, ("faster still", timed(20)))
    return told.folder.path


def test_the_parent_is_what_a_node_is_compared_with(run: Path) -> None:
    result = diff(run, 3)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "--- node 1: twice as fast (50 us modelled), the parent"
    assert lines[1] == "+++ node 3: faster still (20 us modelled)"
    assert "+#define MADE_3 1" in lines
    assert "+#define MADE_1 1" not in lines


def test_the_baseline_or_any_node_may_be(run: Path) -> None:
    against = diff(run, 3, "--against", "baseline").stdout
    assert "node 0: starting kernel (100 us modelled), the baseline" in against
    assert "+#define MADE_1 1" in against
    between = diff(run, 3, 2).stdout
    assert "-#define MADE_3 1" in between
    assert "+#define MADE_2 1" in between
    assert "(race)" in between
    assert "The two are the same text." in diff(run, 1, 1).stdout


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_elsewhere_than_in_a_terminal_it_is_a_patch(run: Path, tmp_path: Path) -> None:
    view, kernel = load_view(run), tmp_path / "kernel.cu"
    kernel.write_text(view.source(0))
    (tmp_path / "edit.patch").write_text(diff(run, 3, "--against", "baseline").stdout)
    subprocess.run(("patch", "-s", str(kernel), str(tmp_path / "edit.patch")), check=True)
    assert kernel.read_text() == view.source(3)


def shown(run: Path, before: int, after: int, width: int = 100) -> str:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=width, color_system="truecolor")
    print_diff(console, Compared(load_view(run), before, after))
    return file.getvalue()


def test_in_a_terminal_lines_are_numbered_and_coloured(run: Path) -> None:
    text = shown(run, 1, 3)
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    assert any(re.fullmatch(r" +8 \+ #define MADE_3 1", line) for line in plain)
    directive, added = "38;2;149;144;119", "48;2;31;61;43"
    assert re.search(rf"\x1b\[[0-9;]*{directive};{added}mdefine MADE_3", text)
    assert max(len(line) for line in plain[4:]) <= 100


def test_no_title_gives_the_terminal_orders(run: Path) -> None:
    left = re.sub(r"\x1b\[[0-9;]*m", "", shown(run, 0, 2))
    assert "\x1b" not in left
    assert "broken" in left


def test_what_cant_be_compared_is_said(run: Path, tmp_path: Path) -> None:
    for words, code, said in (
        ((run, 0), BAD_RUN, "is the starting kernel, which no edit made"),
        ((run, 17), BAD_RUN, "no node 17"),
        ((tmp_path, 1), BAD_RUN, "is not a run"),
        ((run, 1, 2, "--against", "parent"), USAGE, "--against is for one node"),
    ):
        result = diff(*words)
        assert result.exit_code == code
        assert said in re.sub(r"[\s│]+", " ", result.stderr)


LINES = st.lists(
    st.sampled_from(("a = b;", "a = c;", "if (x)", "\tfor", "", "\u2028", "\r", "}")), max_size=12
)


@given(LINES, LINES, st.integers(0, 4))
def test_hunks_hold_every_change_and_both_texts(old: list[str], new: list[str], context: int) -> None:
    before, after = "\n".join(old), "\n".join(new)
    found = [line for hunk in hunks(before, after, context) for line in hunk]
    gone = [line for line in found if line.after is None]
    come = [line for line in found if line.before is None]
    old_lines, new_lines = _as_shown(before), _as_shown(after)
    kept = [text for number, text in enumerate(old_lines, 1) if number not in {line.before for line in gone}]
    assert kept == [
        text for number, text in enumerate(new_lines, 1) if number not in {line.after for line in come}
    ]
    for line in found:
        assert line.before is None or old_lines[line.before - 1] == line.text
        assert line.after is None or new_lines[line.after - 1] == line.text
        for start, end in line.changed:
            assert 0 <= start < end <= len(line.text)
    assert bool(found) == (old_lines != new_lines)


def _as_shown(text: str) -> list[str]:
    text = text.replace("\r\n", "\n").replace("\r", "\N{REPLACEMENT CHARACTER}").expandtabs(4)
    return text.removesuffix("\n").split("\n")
