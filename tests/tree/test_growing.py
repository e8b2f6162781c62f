"""A journal read while another process appends to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.tree.events import Evaluated, Event
from mctskernel.tree.growing import GrowingTree, is_being_written
from mctskernel.tree.journal import Journal, JournalError, read_events, read_tree
from tests.told_run import ToldRun, timed


@pytest.fixture
def journal(tmp_path: Path, small_task: Path) -> Path:
    run = ToldRun(tmp_path / "run", small_task)
    run.edits(0, ("one", timed(50)), ("two", timed(25)))
    return run.folder.journal


def read(growing: GrowingTree) -> list[Event]:
    return list(growing.advance())


def test_however_it_is_cut_the_tree_is_the_same(journal: Path, tmp_path: Path) -> None:
    data, partial = journal.read_bytes(), tmp_path / "partial.jsonl"
    growing, found = GrowingTree(partial), []
    for end in (*range(0, len(data), 97), len(data)):
        partial.write_bytes(data[:end])
        assert not growing.has_gone_back()
        found += read(growing)
    assert found == list(read_events(journal))
    whole = read_tree(journal)
    assert growing.tree.evaluated == whole.evaluated
    assert [node.evaluation for node in growing.tree.nodes] == [node.evaluation for node in whole.nodes]
    assert growing.tree.node_statistics.visits.view.tolist() == whole.node_statistics.visits.view.tolist()


def test_a_torn_last_line_waits_for_its_end(journal: Path) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    growing = GrowingTree(journal)
    assert len(read(growing)) == whole.count(b"\n") - 2
    assert read(growing) == []
    journal.write_bytes(whole)
    assert isinstance(read(growing)[-1], Evaluated)


def test_before_there_is_a_journal_nothing_is_in_it(tmp_path: Path) -> None:
    growing = GrowingTree(tmp_path / "journal.jsonl")
    assert read(growing) == []
    assert not growing.has_gone_back()


def test_what_was_taken_back_is_forgotten(journal: Path) -> None:
    growing = GrowingTree(journal)
    read(growing)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    assert growing.has_gone_back()
    assert not growing.tree.nodes
    assert len(read(growing)) == len(lines) - 2
    assert growing.tree.evaluated == [0, 1]


def test_a_later_version_is_refused_with_a_sentence(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b'{"schema": "mctskernel.journal", "version": 99}\n' + b"".join(lines[1:]))
    with pytest.raises(JournalError, match="version 99 is newer"):
        read(GrowingTree(journal))


def test_a_line_that_is_no_event_is_named(journal: Path) -> None:
    with journal.open("ab") as file:
        file.write(b"nonsense\n")
    growing = GrowingTree(journal)
    with pytest.raises(JournalError, match=r"line \d+: this is no event"):
        read(growing)


def test_who_appends_is_seen(journal: Path) -> None:
    assert not is_being_written(journal)
    with Journal(journal):
        assert is_being_written(journal)
    assert not is_being_written(journal)
    assert not is_being_written(journal.with_name("none"))
