from __future__ import annotations

from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Evaluation, Outcome, Resources, Source, Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.guardrails import (
    Peaks,
    chance_flag,
    flags,
    flags_against,
    floor_seconds,
    library_reason,
    outside_reason,
    quarantine_reason,
)

PEAKS = Peaks(dram_bytes_per_second=3e12, flops_per_second=1e15, l2_bytes=50 << 20)


@pytest.fixture(scope="module")
def transpose() -> Task:
    return load_task(Path(mctskernel.tasks.builtin.__file__).parent / "transpose")


def at(task: Task, seconds: float) -> tuple[Timing, ...]:
    return tuple(Timing(shape_label(shape), seconds, seconds, seconds) for shape in task.search_shapes)


def evaluation(registers: int = 32, seconds: float = 1.0, noise: float = 0.0, **spent: int) -> Evaluation:
    timing = Timing("n=1", seconds, seconds * (1 - noise), seconds * (1 + noise))
    resources = Resources("k", registers, 0, **spent)
    return Evaluation(Outcome.OK, Source.MODELLED, timings=(timing,), resources=(resources,))


def test_a_time_below_the_roofline_is_impossible(transpose: Task) -> None:
    floor = floor_seconds(transpose, transpose.search_shapes[0], PEAKS)
    assert "can't have done the work" in quarantine_reason(transpose, at(transpose, 0.5 * floor), PEAKS)
    assert quarantine_reason(transpose, at(transpose, 1.01 * floor), PEAKS) == ""


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_time_is_impossible(transpose: Task, seconds: float) -> None:
    assert "not a time" in quarantine_reason(transpose, at(transpose, seconds), PEAKS)


def test_what_is_still_in_l2_is_not_on_the_floor(transpose: Task) -> None:
    shape = transpose.search_shapes[0]
    nbytes = transpose.inputs[0].nbytes(shape)
    assert floor_seconds(transpose, shape, PEAKS) == pytest.approx((2 * nbytes - (50 << 20)) / 3e12)


def test_slower_than_the_parent_by_more_than_the_noise_is_flagged() -> None:
    parent = evaluation()
    assert flags_against(evaluation(seconds=1.01), parent) == ()
    assert "Slower than its parent" in flags_against(evaluation(seconds=1.1), parent)[0]
    assert flags_against(evaluation(seconds=1.1, noise=0.2), parent) == ()


def test_spills_and_cliffs_are_flagged() -> None:
    assert "spills 8 bytes" in flags(evaluation(spill_store_bytes=8))[0]
    assert "local memory" in flags(evaluation(stack_bytes=64))[0]
    assert "the most there are" in flags(evaluation(registers=255))[0]
    assert "past the cliff at 64" in flags_against(evaluation(registers=65), evaluation(registers=64))[0]
    (once,) = flags_against(evaluation(registers=127), evaluation(registers=32))
    assert "past the cliff at 64" in once
    assert flags_against(evaluation(registers=70), evaluation(registers=65)) == ()


def test_time_outside_the_own_kernels_is_refused_with_its_share() -> None:
    assert outside_reason(110e-6, [60e-6, 40e-6]) == ""
    # A small kernel's launch takes longer than the kernel.
    assert outside_reason(7e-6, [2e-6]) == ""
    reason = outside_reason(1000e-6, [60e-6, 40e-6])
    assert "take 1000.0 us" in reason
    assert "100.0 us of it" in reason
    assert "89%" in reason


def test_many_launches_are_no_cover_for_time_outside_of_them() -> None:
    assert outside_reason(30e-6, [2e-6] * 5) == ""
    assert "outside of them" in outside_reason(1000e-6, [1e-6] * 100)


@pytest.mark.parametrize(
    ("ptx", "says"),
    [
        (".visible .entry k() { ret; }", ""),
        (".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 a\n)\n;", ""),
        ("// .extern .func cublasSgemm_v2", ""),
        (
            ".extern .func (.param .b32 r) cublasSgemm_v2(.param .b64 a);",
            "'cublasSgemm_v2', which it doesn't",
        ),
        (".extern .func (.param .b64 r) malloc (.param .b64 n) ;", "'malloc'"),
        (
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a);",
            "launches kernels from the device",
        ),
    ],
)
def test_calls_of_what_the_kernel_does_not_define_are_refused(ptx: str, says: str) -> None:
    reason = library_reason(ptx)
    assert says in reason
    assert bool(reason) == bool(says)


def test_a_kernel_that_prints_and_one_that_takes_memory_as_the_compiler_writes_them() -> None:
    body = 'extern "C" __global__ void k(void** x) {{ {} }}'
    prints = build(Kernel(body.format('printf("%p", x);')), ("k",))
    takes = build(Kernel(body.format("x[0] = malloc(4);")), ("k",))
    assert isinstance(prints, Build)
    assert isinstance(takes, Build)
    assert library_reason(prints.ptx) == ""
    assert "'malloc'" in library_reason(takes.ptx)


def test_runs_that_differ_get_a_warning() -> None:
    assert chance_flag(b"\x01", b"\x01", "n=4") == ""
    assert "at n=4: the result depends on chance" in chance_flag(b"\x01", b"\x02", "n=4")
