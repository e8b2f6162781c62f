"""Kernels interleaved with PyTorch: which kernels of a run are timed, how outputs are compared, and all on a GPU."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from mctskernel.cli import main as mctskernel
from mctskernel.core.task_file import load_task
from mctskernel.tasks.builtin import builtin_tasks
from tests.conftest import WriteTask

torch = pytest.importorskip("torch", reason="the extra `gpu` is not installed")
timing = pytest.importorskip("mctskernel.experiments.suite_timing")
interleaved = pytest.importorskip("mctskernel.profiling.pytorch.interleaved")


@pytest.mark.slow
def test_a_run_gives_its_first_kernel_and_its_best_one(tmp_path: Path, write_task: WriteTask) -> None:
    run = tmp_path / "run"
    words = ["search", str(write_task()), "--device", "model", "--budget", "2", "--workers", "1"]
    mctskernel([*words, "--out", str(run)], standalone_mode=False)
    found = timing.kernels_of((run,))
    assert list(found) == ["cuda start", "cuda best"]
    assert found["cuda start"].source == load_task(run / "task").starting_kernel.source


def test_scratch_is_held_as_long_as_its_kernel_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[object, weakref.ref[object]] = {}

    def zeros(extents: object, **_: object) -> object:
        tensor = torch.ones(4)
        made[extents] = weakref.ref(tensor)
        return tensor

    monkeypatch.setattr(interleaved.torch, "zeros", zeros)
    scratch = SimpleNamespace(name="partial", nbytes=16, zero=False)
    candidate = SimpleNamespace(at=lambda *_: SimpleNamespace(scratch=[scratch], tensor_maps=[], launches=[]))
    task = load_task(builtin_tasks()["sum"])
    call, _ = interleaved.bound_plan(task, task.search_shapes[0], candidate, None, {})
    call()
    assert made[16]() is not None, "or PyTorch lends it to somebody else"


def test_contenders_run_once_a_round_in_a_random_order() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> interleaved.Run:
        return lambda: order.append(name) or seconds

    samples = interleaved.interleaved({"fast": run("fast", 1e-3), "slow": run("slow", 0.05)})
    assert len(samples["slow"]) == interleaved.FEWEST
    assert len(samples["fast"]) == interleaved.MOST
    rounds = order[2 * interleaved.WARM_UP :]
    assert {tuple(sorted(rounds[2 * i : 2 * i + 2])) for i in range(interleaved.FEWEST)} == {("fast", "slow")}


@pytest.mark.gpu
# PyTorch warns of itself, of what it deprecates and uses and of graphs that it captures for a try.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["softmax", "histogram", "sum"])
def test_all_contenders_are_timed_on_a_gpu(name: str) -> None:
    kernel = load_task(builtin_tasks()[name]).starting_kernel
    row = timing.time_task(name, {"cuda start": kernel, "cuda best": kernel})
    assert row.problem == ""
    (samples,) = row.seconds.values()
    assert set(samples) == {"cuda start", "cuda best", "eager", *timing.COMPILE_MODES}
    assert min(map(min, samples.values())) > 0
