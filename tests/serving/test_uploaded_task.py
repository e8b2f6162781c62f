"""A task from the network is written into its folder and nowhere else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.serving.uploaded_task import MAX_FILES, UploadError, write_task


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
    with pytest.raises(UploadError):
        write_task({"task.toml": b"", name: b""}, tmp_path / "task")


@settings(deadline=None)
@given(st.dictionaries(st.text(st.sampled_from("a./\\\0é"), max_size=8), st.binary(max_size=3), max_size=6))
def test_nothing_is_ever_written_outside(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    with contextlib.suppress(UploadError):
        write_task(files, outer / "inner" / "task")

    written = [path for path in outer.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(outer / "inner" / "task") and not path.is_symlink() for path in written)


def test_files_are_not_too_many(tmp_path: Path) -> None:
    write_task({str(n): b"" for n in range(MAX_FILES)}, tmp_path / "fits")

    with pytest.raises(UploadError, match="files"):
        write_task({str(n): b"" for n in range(MAX_FILES + 1)}, tmp_path / "task")
