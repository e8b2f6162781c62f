from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.executors.ray import task_files
from mctskernel.executors.ray.task_files import pack, unpacked


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_task_arrives_whole_and_nothing_of_it_stays(small_task: Path, temporary: Path) -> None:
    with unpacked(pack(small_task)) as folder:
        assert load_task(folder).search_shapes == load_task(small_task).search_shapes
    assert list(temporary.iterdir()) == []


def test_hidden_files_caches_and_what_links_lead_to_stay_behind(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    (folder / "data").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "data" / "x.bin").write_bytes(b"\0\1")
    (folder / ".env").write_text("secret")
    (folder / "__pycache__" / "x.pyc").write_text("")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert pack(folder) == {"data/x.bin": b"\0\1"}


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", ""])
def test_a_path_that_leads_out_is_refused(name: str, temporary: Path) -> None:
    with pytest.raises(TaskError, match="inside a task folder"), unpacked({name: b""}):
        pass
    assert list(temporary.iterdir()) == []


def test_too_much_is_refused_in_a_sentence(small_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MAX_BYTES", 100)
    with pytest.raises(TaskError, match="too many to send"):
        pack(small_task)


def test_what_a_killed_process_left_is_swept_away_and_what_is_held_stays(temporary: Path) -> None:
    left = temporary / f"{task_files.PREFIX}left"
    left.mkdir()
    (left / ".held").touch()
    with unpacked({"x": b"1"}) as first:
        assert not left.exists()
        with unpacked({"x": b"2"}):
            assert (first / "x").read_bytes() == b"1"
