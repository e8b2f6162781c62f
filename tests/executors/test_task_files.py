"""A task folder travels whole, and is written into its folder and nowhere else."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.executors import task_files
from mctskernel.executors.task_files import MAX_FILES, pack, unpacked, write_task


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


def test_too_much_is_refused_in_a_sentence(small_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MAX_BYTES", 100)
    with pytest.raises(TaskError, match="too many to send"):
        pack(small_task)


@pytest.mark.parametrize("name", ["a\nb", "a\\b", "a/b/c/d/e"])
def test_a_name_that_no_other_machine_takes_is_refused_before_it_is_sent(tmp_path: Path, name: str) -> None:
    path = tmp_path / "task" / name
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(TaskError, match="can't be the name"):
        pack(tmp_path / "task")


def test_files_are_written_as_they_came(tmp_path: Path) -> None:
    files = {"task.toml": b"a", "data/weights.bin": b"\x00\xff", "Ünïcode name.txt": b""}
    write_task(files, tmp_path / "task")

    found = {path.relative_to(tmp_path / "task").as_posix(): path for path in (tmp_path / "task").rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == files


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "/etc/x",
        "../a",
        "a/../../b",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "a/b/c/d/e",
        "x" * 300,
        "\ud800",
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="can't be the name"):
        write_task({"task.toml": b"", name: b""}, tmp_path / "task")
    assert not (tmp_path / "task").exists()


@settings(deadline=None)
@given(st.dictionaries(st.text(st.sampled_from("a./\\\0é"), max_size=8), st.binary(max_size=3), max_size=6))
def test_nothing_is_ever_written_outside(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    with contextlib.suppress(TaskError):
        write_task(files, outer / "inner" / "task")

    written = [path for path in outer.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(outer / "inner" / "task") and not path.is_symlink() for path in written)


def test_files_are_not_too_many(tmp_path: Path) -> None:
    write_task({str(n): b"" for n in range(MAX_FILES)}, tmp_path / "fits")

    with pytest.raises(TaskError, match="files"):
        write_task({str(n): b"" for n in range(MAX_FILES + 1)}, tmp_path / "task")


def test_nothing_stays_of_files_that_are_refused(temporary: Path) -> None:
    with pytest.raises(TaskError), unpacked({"../x": b""}):
        pass
    assert list(temporary.iterdir()) == []
