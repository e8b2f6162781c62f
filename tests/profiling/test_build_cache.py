"""Builds that are kept on disk: hits, damage, size, and what a worker may have written."""

from contextlib import closing
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.profiling import build_cache
from mctskernel.profiling.build_cache import Entry, Key
from mctskernel.profiling.processes.worker import compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from tests.executors.test_gpu import kernel

KEY = Key("source", ("-arch=sm_90",), "nvrtc 13")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "builds"))
    monkeypatch.setattr(build_cache._State, "collected", None)
    monkeypatch.setattr(build_cache._State, "enabled", True)
    return tmp_path / "builds"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))


def test_a_build_is_found_under_all_that_it_depends_on_and_nothing_else() -> None:
    build_cache.store(KEY, b"product")
    assert build_cache.load(KEY) == b"product"
    others = (
        Key("other", KEY.options, KEY.compiler),
        Key("source", (), "nvrtc 13"),
        Key("source", KEY.options, "nvrtc 14"),
    )
    assert [build_cache.load(other) for other in others] == [None] * 3


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 64])
def test_a_damaged_entry_is_built_again(folder: Path, damage: bytes) -> None:
    build_cache.store(KEY, b"product")
    (file,) = files(folder)
    file.write_bytes(damage)
    assert build_cache.load(KEY) is None
    build_cache.store(KEY, b"product")
    assert build_cache.load(KEY) == b"product"


def test_a_worker_writes_nothing_and_its_parent_keeps_builds_of_the_requested_source_only(
    folder: Path,
) -> None:
    build_cache.collect()
    build_cache.store(KEY, b"product")
    assert build_cache.load(KEY) is None
    collected = build_cache.take_collected()
    assert collected == (Entry(KEY, b"product"),)
    assert build_cache.take_collected() == ()
    forged = Entry(Key("another kernel", (), ""), b"poison")
    build_cache.keep((*collected, forged), "source")
    assert build_cache.load(KEY) == b"product"
    assert len(files(folder)) == 1


@pytest.mark.slow
def test_workers_share_builds_except_those_of_the_final_validation(small_task: Path, folder: Path) -> None:
    def built(trial: Trial) -> int:
        spec = DeviceSpec("gpu", small_task, trial=trial)
        with closing(compile_worker(spec, "sm_90")) as worker:
            assert isinstance(worker.prepare(kernel("twice")), Prepared)
        return len(files(folder))

    assert [built(trial) for trial in (Trial.FINAL_VALIDATION, Trial.SEARCH, Trial.SEARCH)] == [0, 1, 1]
