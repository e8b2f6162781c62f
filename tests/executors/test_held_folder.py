"""A temporary folder goes with its process, and one of a process that was killed with the next."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mctskernel.executors.held_folder import held_folder

PREFIX = "mctskernel-test-"

HOLD = """
import sys
from mctskernel.executors.held_folder import held_folder

with held_folder(sys.argv[1]) as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_what_is_held_stays_and_nothing_else(temporary: Path) -> None:
    with held_folder(PREFIX) as first:
        (first / "x").touch()
        with held_folder(PREFIX) as second:
            assert first != second
        assert (first / "x").exists()
        assert list(temporary.iterdir()) == [first]
    assert list(temporary.iterdir()) == []


def test_what_another_process_holds_is_swept_away_once_it_was_killed(temporary: Path) -> None:
    command = [sys.executable, "-c", HOLD, PREFIX]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            theirs = Path(process.stdout.readline().strip())
            with held_folder(PREFIX):
                assert (theirs / "inner" / "file").exists()
        finally:
            process.send_signal(signal.SIGKILL)
    assert theirs.exists()
    with held_folder(PREFIX) as ours:
        assert list(temporary.iterdir()) == [ours]


def test_folders_that_nobody_is_known_to_have_held_stay(temporary: Path) -> None:
    foreign, unknown = temporary / "another-x", temporary / f"{PREFIX}x"
    foreign.mkdir()
    (foreign / ".held").touch()
    unknown.mkdir()
    with held_folder(PREFIX):
        pass
    assert foreign.exists() and unknown.exists()


def test_no_link_is_followed(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".held").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    with held_folder(PREFIX):
        pass
    assert (elsewhere / ".held").exists()
