"""The lock of a GPU: its holder, processes that wait, and interruption."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.profiling.gpu import lock as locks
from mctskernel.profiling.gpu.lock import GpuLock, InterruptedLockError

A, B = "a0" * 16, "b0" * 16


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    return tmp_path


def contended(lock: GpuLock, unless: Callable[[], bool] = lambda: False) -> None:
    """Wait until another thread waits for the lock."""
    deadline = time.monotonic() + 20
    while not lock.is_contended and not unless() and time.monotonic() < deadline:
        time.sleep(0.001)


def test_one_holds_it_at_a_time_and_waiting_ones_alternate() -> None:
    holding: list[str] = []
    held: list[str] = []
    together = threading.Barrier(2)

    def use(name: str) -> None:
        lock = GpuLock(A)
        together.wait()
        for _ in range(8):
            with lock.held():
                holding.append(name)
                assert holding == [name]
                held.append(name)
                # The other one queues before this one gives the lock back.
                contended(lock, unless=lambda: len(held) >= 15)
                holding.remove(name)
        lock.close()

    threads = [threading.Thread(target=use, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 16
    assert sum(first != second for first, second in itertools.pairwise(held[:14])) >= 10, held


def test_the_locks_of_two_gpus_are_independent(folder: Path) -> None:
    with GpuLock(A).held(), GpuLock(B).held():
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"mctskernel-gpu-{uuid}.{kind}" for uuid in (A, B) for kind in ("lock", "next")
        )


def test_the_holder_sees_that_another_waits_and_that_one_prepares_first() -> None:
    events: list[str] = []
    waits = threading.Event()
    lock, other = GpuLock(A), GpuLock(A)

    def prepare() -> None:
        events.append("waits")
        waits.set()

    def wait() -> None:
        with other.held(before_waiting=prepare):
            events.append("holds")

    with lock.held(before_waiting=lambda: events.append("must not")):
        assert not lock.is_contended
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(60)
        contended(lock)
        assert lock.is_contended
        assert events == ["waits"]
    thread.join()
    assert events == ["waits", "holds"]


def test_patience_ends_and_waiting_can_be_interrupted() -> None:
    with GpuLock(A).held():
        other = GpuLock(A)
        for patience in (0.0, 0.02):
            with other.held(patience):
                pass
        third = GpuLock(A)
        threading.Timer(0.02, third.interrupt).start()
        with pytest.raises(InterruptedLockError), third.held():
            pytest.fail("It was never released.")
    with other.held(0.0), GpuLock(A).held(0.0):
        pass


@pytest.mark.slow
def test_a_process_that_dies_releases_the_lock(folder: Path) -> None:
    script = (
        "import sys, time, pathlib; from mctskernel.profiling.gpu import lock;"
        f"lock.FOLDER = pathlib.Path({str(folder)!r}); held = lock.GpuLock({A!r}).held(); held.__enter__();"
        "print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with GpuLock(A).held(before_waiting=holder.kill):
            pass


def test_files_that_cannot_be_used_are_a_warning(folder: Path) -> None:
    (folder / "elsewhere").touch()
    (folder / f"mctskernel-gpu-{A}.next").symlink_to(folder / "elsewhere")
    lock = GpuLock(A)
    assert "a0a0a0a0" in lock.warning
    with lock.held(), GpuLock(A).held():
        pass
