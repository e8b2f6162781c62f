"""The journal on disk: torn, corrupt, foreign, full, in use, killed."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.tree.events import Refused, Resumed, decode, encode
from mctskernel.tree.fold import fold
from mctskernel.tree.journal import Journal, JournalError, JournalWarning, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.strategies.strategy import Propose


@pytest.fixture
def story(tell: Any) -> Any:
    """Every kind of event at least once."""
    story = tell()
    story.evaluate(0, 0.0, log="a log")
    request = story.search.ask()
    assert isinstance(request, Propose)
    story.search.asked(request)
    story.propose_to(request, "a", "b", "root", "c")
    story.try_next(0.7)
    story.try_next(-1.0, Outcome.WRONG_RESULT)
    while story.next_try().edit.title != "root":
        story.search.refuse(story.next_try(), "The patch doesn't fit.")
    story.submit()
    story.search.refuse(story.next_try(), "The patch doesn't fit.")
    story.search.resume()
    story.propose("d")
    story.submit()
    return story


@pytest.fixture
def path(tmp_path: Path, story: Any) -> Path:
    """The story on disk."""
    path = tmp_path / "journal.jsonl"
    with Journal(path, durable=False) as journal:
        for event in story.journal.events:
            journal.append(event)
    return path


def test_what_append_returns_makes_the_same_tree_as_what_is_read_again(tmp_path: Path, story: Any) -> None:
    with Journal(tmp_path / "journal.jsonl", durable=False) as journal:
        returned = [journal.append(event) for event in story.journal.events]
    assert fold(returned) == story.tree
    assert list(read_events(journal.path)) == story.journal.events


def test_replay_gives_the_same_tree_bit_by_bit(path: Path, story: Any) -> None:
    assert {type(event).__name__ for event in read_events(path)} == {
        "Started", "Submitted", "Evaluated", "Asked", "Proposed", "Duplicated", "Refused", "Resumed"
    }  # fmt: skip
    assert read_tree(path) == story.tree


def test_truncation_at_any_byte_gives_the_tree_of_the_events_before_it(path: Path, story: Any) -> None:
    content = path.read_bytes()
    events = story.journal.events
    trees = [fold(events[:count]) for count in range(len(events) + 1)]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = max(content[:length].count(b"\n") - 1, 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert read_tree(path) == trees[whole], length
        torn = length > 0 and content[length - 1 : length] != b"\n"
        assert [warning.category for warning in caught] == [JournalWarning] * torn


def test_appending_goes_on_after_a_torn_line(path: Path, story: Any) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(JournalWarning, match="last line is incomplete"), Journal(path) as journal:
        journal.append(story.journal.events[-1])
    assert read_tree(path) == story.tree


def test_appending_goes_on_after_a_torn_first_line(tmp_path: Path, story: Any) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"schema":"mctsk')
    with pytest.warns(JournalWarning), Journal(path) as journal:
        journal.append(story.journal.events[0])
    assert list(read_events(path)) == story.journal.events[:1]


@pytest.mark.parametrize(
    ("line", "text", "sentence"),
    [
        (0, "hello", "line 1: this isn't a journal of mctskernel"),
        (0, '{"schema":"other.journal","version":1}', "line 1: this is a 'other.journal'"),
        (0, '{"schema":"mctskernel.journal","version":99}', "line 1: schema version 99 is newer .* Update"),
        (0, '{"schema":"mctskernel.journal","version":0}', "line 1: schema version 0 is unknown"),
        (3, "{}", "line 4: this is no event"),
        (3, "", "line 4: this is no event"),
        (3, '{"event":"evaluated","node":0}', "line 4: this is no event: .*evaluation"),
        (3, '{"event":"exploded"}', "line 4: this is no event: .*exploded"),
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
    with pytest.raises(JournalError, match=f"journal.jsonl.*{sentence}"):
        read_tree(path)
    if line == 0:
        with pytest.raises(JournalError, match=sentence):
            Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"\0" * 300 + b"\n", b"\xff\n{}\n", b'{"event":"asked"\n\n'])
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


def test_an_interrupted_append_leaves_nothing_behind_for_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("deed", ["deleted", "moved", "replaced"])
def test_nothing_is_written_where_nobody_will_find_it(path: Path, deed: str) -> None:
    with Journal(path) as journal:
        if deed == "deleted":
            path.unlink()
        else:
            content = path.read_bytes()
            path.rename(path.with_name("elsewhere"))
            if deed == "replaced":
                path.write_bytes(content)
        with pytest.raises(JournalError, match=r"bring it back|another file than it was"):
            journal.append(Refused(node=0, edit=0, reason="x", at=1.0))


def test_bytes_that_are_no_text(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"event":"asked"', b'"event":"as\xffed"'))
    with pytest.raises(JournalError, match="this is no event"):
        read_tree(path)


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no newline here")
    with pytest.raises(JournalError, match="isn't a journal"):
        Journal(path)
    assert path.read_text() == "no newline here"


def test_missing_and_unwritable(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="can't be read: No such file"):
        read_tree(tmp_path / "journal.jsonl")
    with pytest.raises(JournalError, match="can't be opened: No such file"):
        Journal(tmp_path / "missing" / "journal.jsonl")


def test_an_empty_journal_is_an_empty_tree(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl").close()
    assert read_tree(tmp_path / "journal.jsonl") == Tree()


def test_one_process_at_a_time(path: Path) -> None:
    with Journal(path), pytest.raises(JournalError, match="in use by another process"):
        Journal(path)
    Journal(path).close()


@contextmanager
def room_for(path: Path, more_bytes: int) -> Iterator[None]:
    """A file size limit, past which the system writes short and then fails, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("more_bytes", [0, 1, 40])
def test_a_full_disk_loses_nothing_that_was_written(path: Path, story: Any, more_bytes: int) -> None:
    before = path.read_bytes()
    event = Refused(node=0, edit=0, reason="x" * 100)
    with Journal(path) as journal:
        with (
            room_for(path, more_bytes),
            pytest.raises(JournalError, match=r"journal.jsonl can't be written: "),
        ):
            journal.append(event)
        assert path.read_bytes() == before
        journal.append(Resumed())  # room again
    assert list(read_events(path)) == [*story.journal.events, Resumed()]


def test_an_event_that_could_not_be_journalled_did_not_happen(path: Path, story: Any) -> None:
    class FullDisk:
        def append(self, event: object) -> Any:
            raise JournalError("full")

    story.search._journal = FullDisk()
    before = fold(story.journal.events)
    with pytest.raises(JournalError):
        story.evaluate(len(story.tree.nodes) - 1, 1.0)
    assert story.tree == before


APPEND_FOREVER = """
import sys
from pathlib import Path
from mctskernel.tree.events import Refused
from mctskernel.tree.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = 0
while True:
    journal.append(Refused(node=number, edit=0, reason="x" * (number * 37 % 5000)))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


@pytest.mark.filterwarnings("ignore::mctskernel.tree.journal.JournalWarning")
def test_what_was_reported_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(5)  # noqa: S311
    for attempt in range(10):
        path = tmp_path / f"{attempt}.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        first = process.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        reported = (first + process.stdout.read()).split("\n")[:-1]
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        events = list(read_events(path))
        assert [event.node for event in events[: len(reported)]] == [int(number) for number in reported]
        assert len(events) - len(reported) in {0, 1}


def test_events_are_read_as_they_were_written(story: Any) -> None:
    for event in story.journal.events:
        assert decode(encode(event)) == event
