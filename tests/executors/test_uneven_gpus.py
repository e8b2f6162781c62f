"""Kernels that several GPUs of one kind have timed, or one whose clock isn't what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.profiling.candidate import Candidate, prepare
from mctskernel.profiling.gpu.judge import GpuJudge
from mctskernel.profiling.guardrails import slower_shapes
from mctskernel.profiling.reward import composite, fastest_first
from mctskernel.profiling.stages import Stages

KERNEL = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
extern "C" __global__ void twice(const float* x, float* out, int n) { out[0] = x[0] + n; }
"""

Judging = Callable[[str], Evaluation]
"""Judges the kernel of a name."""

Opener = Callable[[str], AbstractContextManager[Judging]]


@pytest.fixture
def opened(write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Opens a fake GPU by the name of its class."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    task = load_task(write_task())

    @contextmanager
    def open_gpu(name: str) -> Iterator[Judging]:
        def candidate(name: str) -> Candidate:
            return prepare(task, Kernel(KERNEL.replace("twice", name)), "sm_90", Stages())

        with closing(GpuJudge(task, 0, (), f"uneven_gpus:{name}")) as judge:
            judge.use_baseline(candidate("twice"))
            yield lambda name: judge.evaluate(candidate(name), Stages())

    return open_gpu


def test_kernels_rank_as_on_one_gpu_when_one_of_two_is_slower(
    opened: Opener,
) -> None:
    with opened("EvenGpu") as first, opened("SlowerGpu") as second:
        root, faster, almost = first("twice"), second("faster"), first("almost_as_fast")

    assert faster.timings[0].seconds > almost.timings[0].seconds, "as it was measured"
    assert fastest_first([(0, root), (1, almost), (2, faster)], root) == [2, 1, 0]
    assert composite(faster, almost, root).terms["regression"] == 0
    assert slower_shapes(almost, faster), "by 4 %"
    assert (first_uuid := root.gpu) == almost.gpu
    assert faster.gpu == "11" * 16 != first_uuid


def test_after_a_fall_of_the_clock_a_kernel_is_compared_with_the_baseline_at_the_new_one(
    opened: Opener,
) -> None:
    with opened("DriftingGpu") as judged:
        found = [judged("faster") for _ in range(5)]

    ratios = [each.timings[0].seconds / (each.timings[0].baseline_seconds or 0.0) for each in found]
    assert ratios == pytest.approx([0.5] * 5, rel=1e-2)
    assert found[-1].timings[0].seconds == pytest.approx(62.5e-6, rel=1e-2), "as it was measured"
    conditions = [each.timings[0].conditions for each in found]
    assert [each.after.sm_mhz for each in conditions if each] == [1980] * 4 + [1584]


def test_runs_of_a_gpu_that_was_slowed_down_are_no_part_of_a_time(
    opened: Opener,
) -> None:
    with opened("ThrottledGpu") as judged:
        evaluation = judged("faster")
    (timing,) = evaluation.timings
    assert set(timing.samples) == {50e-6}
    assert timing.baseline_seconds == 100e-6
    assert timing.conditions is not None
    assert timing.conditions.dropped == 20
    assert evaluation.flags == ()


def test_a_gpu_that_stays_slow_is_remarked_on_and_its_ratio_is_kept(
    opened: Opener,
) -> None:
    with opened("HotGpu") as judged:
        evaluation = judged("faster")
        again = judged("faster")
    (timing,) = again.timings
    assert timing.seconds / (timing.baseline_seconds or 0.0) == pytest.approx(0.5, rel=0.01)
    (flag,) = evaluation.flags
    assert flag.startswith("At n=4096 its time is less certain than others: the GPU was being slowed down")
    assert again.flags == (flag,)


def test_what_a_slow_gpu_took_for_the_baseline_is_nothing_to_later_kernels(opened: Opener) -> None:
    with opened("HotAtFirstGpu") as judged:
        first, second = judged("faster"), judged("faster")
    assert first.timings[0].baseline_seconds == pytest.approx(200e-6)
    assert second.timings[0].baseline_seconds == pytest.approx(100e-6)
    assert (len(first.flags), second.flags) == (1, ())


def test_a_gpu_that_tells_nothing_of_its_state_is_remarked_on_and_times_all_the_same(
    write_task: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    spec = DeviceSpec("gpu", write_task())
    with GpuExecutor(spec, service="uneven_gpus:SlowerGpu", gate_checks=()) as executor:
        assert executor.remarks == ("No state here.",)
        executor.submit(0, Kernel(KERNEL))
        ((_, evaluation),) = executor.wait()
    assert evaluation.ok
    assert evaluation.timings[0].conditions is None
