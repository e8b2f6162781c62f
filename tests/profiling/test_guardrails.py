from dataclasses import replace
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Evaluation, Outcome, Resources, Source, Timing
from mctskernel.core.task import Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.guardrails import (
    Peaks,
    flags,
    flags_against,
    floor_seconds,
    library_reason,
    outside_reason,
    quarantine_reason,
    refusal,
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


def test_slower_than_the_parent_by_more_than_the_noise_is_flagged() -> None:
    parent = evaluation()
    assert flags_against(evaluation(seconds=1.01), parent) == ()
    assert "Slower than its parent" in flags_against(evaluation(seconds=1.1), parent)[0]
    assert flags_against(evaluation(seconds=1.1, noise=0.2), parent) == ()


def test_spills_and_cliffs_are_flagged() -> None:
    assert "spills 8 bytes" in flags(evaluation(spill_store_bytes=8))[0]
    assert "local memory" in flags(evaluation(stack_bytes=64))[0]
    assert "the most there are" in flags(evaluation(registers=255))[0]
    (flag,) = flags_against(evaluation(registers=65), evaluation(registers=64))
    assert flag.endswith("past the cliff at 64: 28 warps fit on a multiprocessor, not 32.")
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


@pytest.mark.parametrize(
    ("ptx", "says"),
    [
        (".visible .entry k() { ret; }", ""),
        (".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 a\n)\n;", ""),
        (".extern .func (.param .b32 r) cublasSgemm_v2(.param .b64 a);", "'cublasSgemm_v2'"),
        (".extern .func (.param .b64 r) malloc (.param .b64 n) ;", "'malloc'"),
        (".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a);", "launches kernels"),
    ],
)
def test_calls_of_what_the_kernel_does_not_define_are_refused(ptx: str, says: str) -> None:
    reason = library_reason(ptx)
    assert says in reason
    assert bool(reason) == bool(says)


ROOT = Evaluation(Outcome.OK, Source.MEASURED)


def timed(*timings: Timing, source: Source = Source.MEASURED) -> Evaluation:
    return Evaluation(Outcome.OK, source, timings=timings)


def held_out(microseconds: float, baseline: float | None, spread: float = 0.0) -> Timing:
    seconds = microseconds * 1e-6
    beside = None if baseline is None else baseline * 1e-6
    low, high = seconds * (1 - spread), seconds * (1 + spread)
    return Timing("n=77", seconds, low, high, baseline_seconds=beside)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (held_out(50, 100), "it is faster"),
        (held_out(101.5, 100), "it differs by noise"),
        (held_out(110, 100, spread=0.1), "its interval reaches the baseline"),
        (held_out(110, None), "there is nothing to compare with"),
    ],
)
def test_the_final_validation_passes(found: Timing, why: str) -> None:
    assert not refusal(timed(found), ROOT), why


def test_a_regression_at_any_held_out_shape_refuses() -> None:
    reason = refusal(timed(held_out(50, 100), held_out(130, 100)), ROOT)
    assert "n=77" in reason
    assert "130.0 us" in reason
    assert "1.30 times" in reason


def test_what_failed_there_or_is_not_believed_is_refused_with_its_own_sentence() -> None:
    failed = Evaluation(Outcome.RACE, Source.MEASURED, "two warps met.")
    assert refusal(failed, ROOT) == "race: two warps met."
    assert refusal(replace(timed(held_out(50, 100)), quarantine="too fast."), ROOT) == "too fast."
