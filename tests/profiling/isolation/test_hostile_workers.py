"""A worker that has been subverted: what it can do to the process that asks it, and to the machine."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import build_cache
from mctskernel.profiling.processes import child_process
from mctskernel.profiling.processes.worker import Limits, Worker
from tests.processes import wait_for
from tests.profiling.isolation.kernels import NEEDS_LANDLOCK


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hostile device, importable by workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("hostile_device").Hostile


@pytest.fixture
def worker(opener: Any, tmp_path: Path) -> Iterator[Worker]:
    (tmp_path / "task").mkdir()
    made = Worker(DeviceSpec("model", tmp_path / "task"), limits=Limits(seconds=20.0), opener=opener)
    yield made
    made.close()


def answer(worker: Worker, order: str) -> str:
    return worker.evaluate(Kernel(order)).message


def test_an_answer_to_what_nobody_asked_is_no_answer_to_the_next_question(worker: Worker) -> None:
    first = worker.pid
    assert answer(worker, "praise_the_next") == "praised"
    wait_for(worker._process._child.channel.has_unread)
    assert answer(worker, "pid") not in {"praised", str(first)}


@pytest.mark.slow
def test_a_worker_that_fills_its_folder_is_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "MAX_FOLDER_BYTES", 4 << 20)
    evaluation = worker.evaluate(Kernel(f"fill {8 << 20}"))
    assert evaluation.outcome is Outcome.CRASH
    assert "4 MiB" in evaluation.message
    assert answer(worker, "pid")


def test_a_link_in_a_worker_s_folder_is_not_read(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a secret")
    evaluation = worker.evaluate(Kernel(f"end_with_a_link {tmp_path}/text"))
    assert evaluation.outcome is Outcome.CRASH
    assert "secret" not in evaluation.log + evaluation.message


@pytest.mark.parametrize(("stage", "said"), [("build", "'build'"), ("A\x1b[2J" * 20, "")])
def test_a_timeout_says_how_far_it_came(opener: Any, tmp_path: Path, stage: str, said: str) -> None:
    worker = Worker(DeviceSpec("model", tmp_path), limits=Limits(seconds=0.5), opener=opener)
    evaluation = worker.evaluate(Kernel(f"hang_at {stage}"))
    worker.close()
    assert evaluation.outcome is Outcome.TIMEOUT
    assert ("It was in the stage" in evaluation.message) is bool(said)
    assert said in evaluation.message
    assert "\x1b" not in evaluation.message


def test_what_a_worker_started_ends_with_it(worker: Worker, tmp_path: Path) -> None:
    mark = str(tmp_path)
    answer(worker, f"leave_behind {mark}")
    wait_for(lambda: bool(_running(mark)))
    worker.close()
    assert not _running(mark)


@NEEDS_LANDLOCK
def test_a_worker_reads_its_task_and_writes_its_folder(worker: Worker, tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "task"):
        (where / "text").write_text("a secret")
    assert answer(worker, f"read {tmp_path}/task/text") == "a secret"
    assert answer(worker, f"read {tmp_path}/text") in {"PermissionError", "FileNotFoundError"}
    assert answer(worker, "write here") == "written"
    assert answer(worker, f"write {tmp_path}/task/planted") in {"PermissionError", "OSError"}
    assert not (tmp_path / "task" / "planted").exists()


@NEEDS_LANDLOCK
def test_a_worker_reads_the_build_cache_and_cannot_write_it(
    opener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "builds"))
    builds = tmp_path / "builds" / "ab"
    builds.mkdir(parents=True)
    (tmp_path / "task").mkdir()
    (builds / "entry").write_text("a build")
    worker = Worker(DeviceSpec("model", tmp_path / "task"), opener=opener)
    try:
        assert answer(worker, f"read {builds}/entry") == "a build"
        for name in ("entry", "new"):
            assert answer(worker, f"write {builds}/{name}") in {"PermissionError", "OSError"}
    finally:
        worker.close()
    assert (builds / "entry").read_text() == "a build"


def test_a_worker_inherits_its_channel_and_nothing_else(opener: Any, tmp_path: Path) -> None:
    with (tmp_path / "text").open("w") as mine:
        os.set_inheritable(mine.fileno(), True)
        worker = Worker(DeviceSpec("model", tmp_path), opener=opener)
        opened = answer(worker, "descriptors").split()
        worker.close()
    assert sum(each.startswith("socket:") for each in opened) == 1
    assert str(mine.name) not in opened


def _running(mark: str) -> list[str]:
    """The living processes whose command line ends in a mark; by that, since a number may be one of a namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().endswith(f"{mark}\0".encode()):
                found.append(process.name)
        except OSError:
            continue
    return found
