from __future__ import annotations

import math
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.ptx_text import variable_bytes
from mctskernel.profiling.stages import Stages


@pytest.mark.parametrize(
    ("ptx", "nbytes"),
    [
        (".global .align 1 .b8 huge[68719476736];", 64 << 30),
        (".const .align 16 .v4 .f32 a[2][3], b[0x10];", 16 * 6 + 16 * 16),
        (".global .b64 a[] = {1, 2, {3}}, b<5>;", 8 + 40),
        (".global .b8 hidden[1 << 36];", math.inf),
        ("/* .global .b8 a[99]; */ ld.global.u32 %r1, [%rd2+4]; // .global .b8 b[99];", 0),
    ],
)
def test_declared_variables_are_added_up(ptx: str, nbytes: float) -> None:
    assert variable_bytes(ptx) == nbytes


@pytest.mark.parametrize(
    "variable", ["__device__ char huge[64ull << 30];", "__device__ float one[150000000], other[150000000];"]
)
def test_device_variables_of_more_than_a_gibibyte_are_refused(variable: str) -> None:
    task = load_task(Path(mctskernel.tasks.builtin.__file__).parent / "softmax")
    kernel = Kernel(f"{task.starting_kernel.source}\n{variable}", task.starting_kernel.language)
    with pytest.raises(RefusedError, match="more than 1 GiB") as refused:
        prepare(task, kernel, "sm_90", Stages())
    assert (refused.value.outcome, refused.value.guard) == (Outcome.LAUNCH_ERROR, Guard.LAUNCH_LIMITS)
    prepare(task, task.starting_kernel, "sm_90", Stages())
