"""Turns on a GPU: who has one, who waits, and who is called off."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.profiling.counters import INSTRUCTIONS, TIME
from mctskernel.profiling.gpu import turn as turns
from mctskernel.profiling.gpu.turn import InterruptedTurnError, Turn

FINE = Evaluation(Outcome.OK, Source.MEASURED)
A, B = "a0" * 16, "b0" * 16
COUNTED = (TIME, INSTRUCTIONS)


def test_a_turn_is_held_by_one_alone_and_they_alternate(folder: Path) -> None:
    holding: list[str] = []
    held: list[str] = []
    together = threading.Barrier(2)

    def use(name: str) -> None:
        turn = Turn(A)
        together.wait()
        for _ in range(8):
            with turn.held():
                holding.append(name)
                assert holding == [name]
                time.sleep(0.01)
                held.append(name)
                holding.remove(name)
        turn.close()

    threads = [threading.Thread(target=use, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes = sum(first != second for first, second in itertools.pairwise(held))
    assert len(held) == 16
    assert changes >= 10, held


def test_the_turns_of_two_gpus_have_nothing_to_do_with_each_other(folder: Path) -> None:
    with Turn(A).held(), Turn(B).held():
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"mctskernel-gpu-{uuid}.{kind}" for uuid in (A, B) for kind in ("lock", "next")
        )


def test_who_has_the_turn_knows_that_it_is_wanted_and_who_waits_is_told_before(folder: Path) -> None:
    told: list[str] = []
    turn, other = Turn(A), Turn(A)

    def wait() -> None:
        with other.held(before_waiting=lambda: told.append("waits")):
            told.append("has it")

    with turn.held(before_waiting=lambda: told.append("must not")):
        assert not turn.is_wanted
        thread = threading.Thread(target=wait)
        thread.start()
        deadline = time.monotonic() + 5
        while not turn.is_wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        assert turn.is_wanted
        assert told == ["waits"]
    thread.join()
    assert told == ["waits", "has it"]


def test_who_is_not_that_patient_goes_on_without_the_turn_and_takes_it_from_nobody(folder: Path) -> None:
    with Turn(A).held():
        other = Turn(A)
        for patience in (0.0, 0.05):
            with other.held(patience):
                pass
        with pytest.raises(InterruptedTurnError):
            third = Turn(A)
            threading.Timer(0.05, third.interrupt).start()
            with third.held():
                pytest.fail("It was never given back.")
    with other.held(0.0), Turn(A).held(0.0):
        pass


def test_whoever_dies_gives_the_turn_back_and_who_waits_can_be_called_off(folder: Path) -> None:
    script = (
        "import sys, time, pathlib; from mctskernel.profiling.gpu import turn;"
        f"turn.FOLDER = pathlib.Path({str(folder)!r}); held = turn.Turn({A!r}).held(); held.__enter__();"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turn = Turn(A)
        threading.Timer(0.1, turn.interrupt).start()
        with pytest.raises(InterruptedTurnError), turn.held():
            pass
        threading.Timer(0.1, holder.kill).start()
        began = time.monotonic()
        with Turn(A).held():
            assert time.monotonic() - began < 5.0


def test_a_folder_of_locks_that_cannot_be_used_is_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (tmp_path / f"mctskernel-gpu-{A}.next").symlink_to(elsewhere)
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    turn = Turn(A)
    assert "a0a0a0a0" in turn.remark
    with turn.held(), Turn(A).held():
        pass
