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
from mctskernel.profiling.gpu import reference_device
from mctskernel.profiling.gpu.lock import GpuLock, InterruptedLockError
from mctskernel.profiling.gpu.reference_device import hold, holding, let_go

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


def test_patience_ends_and_waiting_can_be_interrupted() -> None:
    with GpuLock(A).held():
        other = GpuLock(A)
        for patience in (0.0, 0.02):
            with other.held(patience) as is_held:
                assert not is_held
        third = GpuLock(A)
        threading.Timer(0.02, third.interrupt).start()
        with pytest.raises(InterruptedLockError), third.held():
            pytest.fail("It was never released.")
    with other.held(0.0) as is_held, GpuLock(A).held(0.0):
        assert is_held


def test_who_waits_has_a_turn_between_the_references_that_hold_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_device, "TURN_SECONDS", 0.0)
    order: list[str] = []
    own, others = GpuLock(A), GpuLock(A)

    def evaluate() -> None:
        with others.held():
            order.append("evaluation")

    evaluation = threading.Thread(target=evaluate)
    with holding(own):
        assert own.is_free, "Nothing is held before the GPU is used."
        hold()
        order.append("reference")
        evaluation.start()
        contended(own)
        hold()
        order.append("reference")
        let_go()
        assert own.is_free
    evaluation.join()
    assert order == ["reference", "evaluation", "reference"]
    hold()
    assert own.is_free, "Outside of the block nothing is to be held."


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
        threading.Timer(0.02, holder.kill).start()
        with GpuLock(A).held():
            pass
