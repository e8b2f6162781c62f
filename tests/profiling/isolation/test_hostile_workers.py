"""A worker that has been subverted: what it can do to the process that asks it, and to the machine."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from mctskernel.profiling.processes import conversation
from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.processes.workers import Limits, Worker


def _has_landlock() -> bool:
    try:
        return bool(landlock.abilities())
    except RefusedByKernelError:
        return False


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    opener = importlib.import_module("hostile_device").Hostile
    (tmp_path / "task").mkdir()
    made = Worker(DeviceSpec("model", tmp_path / "task"), limits=Limits(seconds=20.0), opener=opener)
    yield made
    made.close()


def answer(worker: Worker, order: str) -> str:
    return worker.evaluate(Kernel(order)).message


def test_an_answer_to_what_nobody_asked_is_no_answer_to_the_next_question(worker: Worker) -> None:
    first = worker.pid
    assert answer(worker, "praise_the_next") == "praised"
    time.sleep(0.1)
    assert answer(worker, "pid") not in {"praised", str(first)}


def test_a_worker_that_fills_its_folder_is_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_FOLDER_BYTES", 4 << 20)
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
def test_a_timeout_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    opener = importlib.import_module("hostile_device").Hostile
    worker = Worker(DeviceSpec("model", tmp_path), limits=Limits(seconds=0.5), opener=opener)
    evaluation = worker.evaluate(Kernel(f"hang_at {stage}"))
    worker.close()
    assert evaluation.outcome is Outcome.TIMEOUT
    assert ("It had come to the stage" in evaluation.message) is bool(said)
    assert said in evaluation.message
    assert "\x1b" not in evaluation.message


def test_what_a_worker_started_ends_with_it(worker: Worker, tmp_path: Path) -> None:
    mark = str(tmp_path)
    answer(worker, f"leave_behind {mark}")
    end = time.monotonic() + 10
    while not _running(mark) and time.monotonic() < end:
        time.sleep(0.02)
    assert _running(mark), "it never began"
    worker.close()
    assert not _running(mark)


@pytest.mark.skipif(not _has_landlock(), reason="needs Landlock")
def test_a_worker_reads_its_task_and_writes_its_folder(worker: Worker, tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "task"):
        (where / "text").write_text("a secret")
    assert answer(worker, f"read {tmp_path}/task/text") == "a secret"
    assert answer(worker, f"read {tmp_path}/text") in {"PermissionError", "FileNotFoundError"}
    assert answer(worker, "write here") == "written"
    assert answer(worker, f"write {tmp_path}/task/planted") in {"PermissionError", "OSError"}
    assert not (tmp_path / "task" / "planted").exists()


def test_a_worker_inherits_its_channel_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    opener = importlib.import_module("hostile_device").Hostile
    with (tmp_path / "text").open("w") as mine:
        os.set_inheritable(mine.fileno(), True)
        worker = Worker(DeviceSpec("model", tmp_path), opener=opener)
        opened = answer(worker, "descriptors").split()
        worker.close()
    assert sum(each.startswith("socket:") for each in opened) == 1
    assert str(mine.name) not in opened


def test_a_child_cannot_cut_off_what_its_parent_reads() -> None:
    window = SharedWindow()
    window.reserve(1 << 16)
    with pytest.raises(PermissionError):
        os.ftruncate(window.fd, 0)
    window.reserve(1 << 20)
    assert window.bytes_at(0, 1 << 20).sum() == 0
    window.close()


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
