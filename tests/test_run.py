"""Run folders: made, refused, read again, damaged."""

import errno
from pathlib import Path

import msgspec
import pytest

from mctskernel.answer import Answer
from mctskernel.core.disk import BlobStore
from mctskernel.core.evaluation import Check
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.run import (
    RunFolder,
    open_run,
    prepare_run,
    read_answer,
    read_manifest,
    write_answer,
    write_manifest,
)
from mctskernel.tree.journal import MemoryJournal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests.conftest import WriteTask
from tests.landscape import kernel
from tests.synthetic_run import CONFIGURATION


@pytest.fixture
def run(tmp_path: Path, write_task: WriteTask) -> RunFolder:
    folder = prepare_run(tmp_path / "run", load_task(write_task()))
    write_manifest(folder, CONFIGURATION, {"device": "modelled H100"})
    return folder


def test_a_run_is_read_as_it_was_written(run: RunFolder) -> None:
    manifest = read_manifest(open_run(run.path))
    assert manifest.configuration == CONFIGURATION
    assert manifest.fingerprint == {"device": "modelled H100"}


def test_a_folder_that_holds_something_is_refused(run: RunFolder, write_task: WriteTask) -> None:
    with pytest.raises(RunError, match=r"already holds something.*resume"):
        prepare_run(run.path, load_task(write_task()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a run's"),
        ("{", "is not a run's"),
        ("[]", "is not a run's"),
        ('{"schema_version": 2}', "is not a run's"),
        ('{"schema_version": 1}', r"schema version 1.*reads version 2"),
        ('{"schema_version": 99, "anything": []}', r"schema version 99.*reads version 2"),
    ],
)
def test_a_damaged_or_newer_run_json_is_a_sentence(run: RunFolder, text: str, message: str) -> None:
    run.manifest.write_text(text)
    with pytest.raises(RunError, match=message):
        open_run(run.path)


def test_blobs_come_back_and_damage_is_seen(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    text = "// 16 \N{MULTIPLICATION SIGN} 16\n"
    digest = blobs.put(text)
    assert blobs.put(text) == digest
    assert blobs.get(digest) == text
    next((tmp_path / "blobs").rglob(digest)).write_text("other")
    with pytest.raises(RunError, match="damaged"):
        blobs.get(digest)


def test_a_full_disk_is_a_sentence_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    blobs = BlobStore(tmp_path)
    kept = blobs.put("before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        blobs.put("after")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [kept]


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "f" * 63, "F" * 64, "0" * 64])
def test_a_blob_that_is_not_there_is_a_sentence(tmp_path: Path, digest: str) -> None:
    with pytest.raises(RunError):
        BlobStore(tmp_path).get(digest)


def test_an_answer_is_read_as_it_was_written(run: RunFolder) -> None:
    search = TreeSearch(Tree(), MemoryJournal(), run.blobs)
    search.start(kernel(1, 2), Policy(), 0)
    answer = Answer(0, 1.5, (Check("n=77", 9, passed=True, error=0.1),), ((4, "n=77: wrong"),))
    assert read_answer(run) is None
    write_answer(run, search, answer)
    assert read_answer(run) == answer
    assert (run.best / "kernel.cu").read_text() == kernel(1, 2).source
    (run.best / "answer.json").write_bytes(msgspec.json.encode({"node": "zero"}))
    with pytest.raises(RunError, match=r"answer\.json"):
        read_answer(run)


def test_an_answer_is_never_told_without_its_kernel(run: RunFolder) -> None:
    search = TreeSearch(Tree(), MemoryJournal(), run.blobs)
    search.start(kernel(1, 2), Policy(), 0)
    write_answer(run, search, Answer(None, 0.0))
    (run.best / "kernel.cu").mkdir()
    with pytest.raises(RunError, match=r"kernel\.cu"):
        write_answer(run, search, Answer(0, 1.0))
    assert read_answer(run) is None
