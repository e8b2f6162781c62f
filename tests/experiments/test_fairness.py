"""Comparing GPUs of one kind, with evaluations that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.evaluation import Conditions, Evaluation, GpuState, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.experiments.fairness import Report, comparisons, first_edits, in_rounds, rows, table
from tests.landscape import InProcess

SECONDS = {"start": 100e-6, "better": 98e-6, "best": 96e-6}
KERNELS = {name: Kernel(name) for name in SECONDS}


def gpu(factor: float) -> InProcess:
    """An executor on a GPU where everything takes `factor` times as long."""

    def judge(kernel: Kernel) -> Evaluation:
        seconds, baseline = factor * SECONDS[kernel.source], factor * SECONDS["start"]
        state = GpuState(1980, 2619, 50, 300.0)
        timing = Timing(
            "n=1",
            seconds,
            seconds,
            seconds,
            baseline_seconds=baseline,
            conditions=Conditions(state, state, dropped=10),
        )
        ok = kernel.source != "better" or factor < 2
        return Evaluation(Outcome.OK if ok else Outcome.CRASH, Source.MEASURED, timings=(timing,))

    return InProcess(judged_by=judge)


def test_a_slower_gpu_differs_as_measured_and_not_beside_the_starting_kernel() -> None:
    found = in_rounds([gpu(1.0), gpu(1.03)], KERNELS, rounds=2)
    (compared,) = comparisons("bowl", ["0", "1"], found)
    assert compared.kernels == 3
    assert compared.measured.median == pytest.approx(0.03)
    assert compared.beside.most == pytest.approx(0, abs=1e-12)
    assert (compared.measured.misplaced, compared.beside.misplaced) == (2, 0)
    assert compared.again_measured.most == 0
    judged = list(rows("bowl", ["0", "1"], found))
    assert len(judged) == 12
    assert (judged[0].sm_mhz, judged[0].dropped) == (1980, 10)
    page = table(Report(("00", "11"), (compared,), tuple(judged), 1.0))
    assert "1980 MHz. 50 C. 300 W. 120 runs were made again." in page
    assert "| bowl | 3 | 1 | +3.00%, 3.00% | +0.00%, 0.00% | 2 to 0 of 6 |" in page


def test_a_kernel_that_one_gpu_failed_is_left_out() -> None:
    (compared,) = comparisons("bowl", ["0", "1"], in_rounds([gpu(1.0), gpu(2.0)], KERNELS, rounds=1))
    assert compared.kernels == 2


def test_the_kernels_are_distinct_and_begin_with_the_starting_one() -> None:
    task = load_task(Path(mctskernel.tasks.__file__).parent / "softmax")
    found = list(first_edits(task, 4))
    assert found[0] == ("starting kernel", task.starting_kernel)
    assert len({kernel.identity for _, kernel in found}) == len(found) == 4
