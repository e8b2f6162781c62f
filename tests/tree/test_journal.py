"""The journal on disk: torn, corrupt, foreign, full, in use, killed, and read while it grows."""

import os
import resource
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.user_errors import RunError
from mctskernel.tree.events import Refused, Resumed, decode, encode
from mctskernel.tree.journal import SCHEMA_VERSION, Journal, JournalWarning, read_events, read_tree
from mctskernel.tree.replay import replay
from tests.tree.grown import Grown


@pytest.fixture
def grown() -> Grown:
    """Every kind of event at least once."""
    grown = Grown(reward=None)
    grown.evaluate(0, 0.0, log="a log")
    grown.search.request(0)
    grown.offer_sources(0, "a", "b", "root", "c")
    grown.try_next(0.7)
    grown.try_next(-1.0, Outcome.WRONG_RESULT)
    assert grown.submit()[1] is None  # the root again
    grown.search.refuse(grown.next_edit()[0], "The patch doesn't apply.")
    grown.search.resume()
    grown.offer_sources(0, "d")
    grown.submit()
    return grown


@pytest.fixture
def path(tmp_path: Path, grown: Grown) -> Path:
    """Those events on disk."""
    path = tmp_path / "journal.jsonl"
    with Journal(path, durable=False) as journal:
        for event in grown.journal.events:
            journal.append(event)
    return path


def test_replay_gives_the_same_tree_bit_by_bit(path: Path, grown: Grown) -> None:
    assert {type(event).__name__ for event in read_events(path)} == {
        "Started", "Submitted", "Evaluated", "Requested", "Proposed", "Duplicated", "Refused", "Resumed"
    }  # fmt: skip
    assert read_tree(path) == grown.tree
    assert all(decode(encode(event)) == event for event in grown.journal.events)


def test_truncation_at_any_byte_gives_the_tree_of_the_events_before_it(path: Path, grown: Grown) -> None:
    content, events = path.read_bytes(), grown.journal.events
    trees = [replay(events[:count]) for count in range(len(events) + 1)]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        complete = max(content[:length].count(b"\n") - 1, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert read_tree(path) == trees[complete], length
        torn = length > 0 and content[length - 1 : length] != b"\n"
        assert [warning.category for warning in caught] == [JournalWarning] * torn


@pytest.mark.parametrize("content", [b"", b'{"schema":"mctsk'])
def test_appending_begins_after_an_empty_or_torn_first_line(
    tmp_path: Path, grown: Grown, content: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalWarning)
        with Journal(path) as journal:
            journal.append(grown.journal.events[0])
    assert list(read_events(path)) == grown.journal.events[:1]


def test_appending_continues_after_a_torn_line(path: Path, grown: Grown) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(JournalWarning, match="last line is incomplete"), Journal(path) as journal:
        journal.append(grown.journal.events[-1])
    assert read_tree(path) == grown.tree


@pytest.mark.parametrize(
    ("line", "text", "sentence"),
    [
        (0, "hello", "line 1: this isn't a journal of mctskernel"),
        (0, '{"schema":"other.journal","version":1}', "line 1: this is a 'other.journal'"),
        *(
            (
                0,
                f'{{"schema":"mctskernel.journal","version":{version}}}',
                f"version {version}; this mctskernel reads only version {SCHEMA_VERSION}",
            )
            for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1)
        ),
        (3, "{}", "line 4: this is no event"),
        (3, "", "line 4: this is no event"),
        (3, '{"event":"evaluated","node":0}', "line 4: this is no event: .*evaluation"),
        (3, '{"event":"refused","node":7,"edit":0,"reason":"x"}', "line 4: .* there is no node 7"),
        (-3, "\0\0\0", "this is no event"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_file_and_line(
    path: Path, line: int, text: str, sentence: str
) -> None:
    lines = path.read_text().split("\n")
    lines[line] = text
    path.write_text("\n".join(lines))
    before = path.read_bytes()
    with pytest.raises(RunError, match=f"journal.jsonl.*{sentence}"):
        read_tree(path)
    if line == 0:
        with pytest.raises(RunError, match=sentence):
            Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"\0" * 300 + b"\n", b"\xff\n{}\n", b'{"event":"proposed"\n\n'])
@pytest.mark.parametrize("overwritten", [0, 10])
def test_damaged_lines_at_the_end_are_dropped_and_kept_beside_the_journal(
    path: Path, damage: bytes, overwritten: int
) -> None:
    before = path.read_bytes()
    path.write_bytes(before[: len(before) - overwritten] + damage)
    kept = before if not overwritten else b"".join(before.splitlines(keepends=True)[:-1])
    with pytest.warns(JournalWarning, match="damaged bytes at the end were dropped"):
        tree = read_tree(path)
    with pytest.warns(JournalWarning), Journal(path):
        assert path.read_bytes() == kept
    assert tree.events == len(list(read_events(path)))
    lost = path.with_name("journal.jsonl.damaged").read_bytes()
    assert lost == before[len(kept) : len(before) - overwritten] + damage


def test_an_interrupted_append_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook, where the search goes on afterwards: the next line is shorter."""
    with Journal(path) as journal:
        before = path.read_bytes()

        def interrupted(file: int, data: bytes, offset: int) -> int:
            os.lseek(file, offset, os.SEEK_SET)
            os.write(file, data)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, "pwrite", interrupted)
            journal.append(Refused(node=0, edit=0, reason="so long " * 100, at=1.0))
        assert path.read_bytes() == before


def test_foreign_and_missing_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no newline here")
    with pytest.raises(RunError, match="isn't a journal"):
        Journal(path)
    assert path.read_text() == "no newline here"
    with pytest.raises(RunError, match="can't be read: No such file"):
        read_tree(tmp_path / "journal.jsonl")
    with pytest.raises(RunError, match="can't be opened: No such file"):
        Journal(tmp_path / "missing" / "journal.jsonl")


def test_one_process_appends_at_a_time(path: Path) -> None:
    with Journal(path), pytest.raises(RunError, match="in use by another process"):
        Journal(path)


@pytest.mark.parametrize("more_bytes", [0, 40])
def test_a_full_disk_loses_nothing_that_was_written(path: Path, grown: Grown, more_bytes: int) -> None:
    before, event = path.read_bytes(), Refused(node=0, edit=0, reason="x" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        # Past a file size limit the system writes short and then fails, as a full disk does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + more_bytes, hard))
        try:
            with pytest.raises(RunError, match=r"journal.jsonl can't be written: "):
                journal.append(event)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        journal.append(Resumed())
    assert list(read_events(path)) == [*grown.journal.events, Resumed()]


def test_an_event_that_could_not_be_journalled_did_not_happen(
    grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(event: object) -> Any:
        raise RunError("full")

    before = grown.replayed()
    monkeypatch.setattr(grown.journal, "append", full)
    with pytest.raises(RunError):
        grown.evaluate(len(grown.tree.nodes) - 1, 1.0)
    assert grown.tree == before


APPEND_FOREVER = """
import sys
from pathlib import Path
from mctskernel.tree.events import Refused
from mctskernel.tree.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = 0
while True:
    journal.append(Refused(node=number, edit=0, reason="x" * (number * 37 % 5000)))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
@pytest.mark.parametrize("lines", [1, 17, 200])
def test_what_was_reported_survives_kill_9(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "journal.jsonl"
    command = [sys.executable, "-c", APPEND_FOREVER, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    reported = [process.stdout.readline() for _ in range(lines)]
    os.kill(process.pid, signal.SIGKILL)
    reported += process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    reported = [line for line in reported if line.endswith("\n")]
    events = list(read_events(path))
    assert [event.node for event in events[: len(reported)]] == [int(number) for number in reported]
    assert len(events) - len(reported) in {0, 1}
