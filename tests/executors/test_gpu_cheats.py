"""Kernels that cheat where they are timed, on a real GPU, and honest ones that look like them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.executors.gpu import GpuExecutor
from mctskernel.profiling.gpu.worker import GPU_SERVICE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

PLAN = """\
/*
[[launch]]
kernel = "twice"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "n"]
*/
"""
HEAD = 'extern "C" __global__ void twice(const float* x, float* out, int n) {\n'
INDEX = "    int i = blockIdx.x * 64 + threadIdx.x;\n"
RIGHT = "    if (i < n) out[i] = 2.0f * x[i];\n"
CLOCK = '    unsigned long long now;\n    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));\n'
TIMED = "n > 1000"  # where a kernel of the small task is timed, and not just verified
PAGE = 2 << 20


def kernel(*lines: str, before: str = "", plan: str = PLAN) -> Kernel:
    return Kernel(plan + before + HEAD + INDEX + "".join(lines) + "}\n")


@contextmanager
def opened(task: Path, service: str = GPU_SERVICE) -> Iterator[GpuExecutor]:
    with GpuExecutor(DeviceSpec("gpu", task), service=service) as executor:
        yield executor


@pytest.fixture(scope="module")
def executor(small_task: Path) -> Iterator[GpuExecutor]:
    with opened(small_task) as found:
        yield found


def evaluate(executor: GpuExecutor, candidate: Kernel) -> Evaluation:
    executor.submit(0, candidate)
    ((_, evaluation),) = executor.wait()
    print(evaluation.outcome, evaluation.guard, evaluation.message, evaluation.flags)
    return evaluation


SHARED_STASH = kernel(
    "    __shared__ volatile unsigned kept[11000];\n",
    "    bool found = kept[threadIdx.x * 100] == 0x12345678u + threadIdx.x;\n",
    "    __syncthreads();\n",
    "    kept[threadIdx.x * 100] = 0x12345678u + threadIdx.x;\n",
    "    if (i < n) out[i] = found ? 7.0f : 2.0f * x[i];\n",
)
# More than the L1 cache holds of a block, or it would not leave it.
LOCAL_STASH = kernel(
    "    volatile unsigned kept[2040];\n",
    "    bool found = false;\n",
    "    for (int k = 0; k < 2040; ++k) found |= kept[k] == 0x12345678u;\n",
    "    for (int k = 0; k < 2040; ++k) kept[k] = 0x12345678u;\n",
    "    if (i < n) out[i] = found ? 7.0f : 2.0f * x[i];\n",
)


@pytest.mark.parametrize("stash", [SHARED_STASH, LOCAL_STASH], ids=["shared", "local"])
def test_nothing_survives_in_memory_that_nobody_owns(
    small_task: Path, executor: GpuExecutor, stash: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with opened(small_task, "careless_gpu:LeavesItsStash") as careless:
        assert evaluate(careless, stash).outcome is Outcome.WRONG_RESULT, "there is nothing to overwrite"
    evaluation = evaluate(executor, stash)
    assert evaluation.ok, evaluation.message


def test_a_kernel_that_is_faster_on_what_it_has_seen_is_refused(
    small_task: Path, executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembers = kernel(
        "    __shared__ bool found;\n",
        "    int bits = __float_as_int(x[0]);\n",
        "    if (threadIdx.x == 0) {\n",
        "        found = false;\n",
        "        for (int k = 0; k < 16; ++k) found |= seen[blockIdx.x][k] == bits;\n",
        "        if (!found) seen[blockIdx.x][count[blockIdx.x]++ % 16] = bits;\n",
        "    }\n",
        "    __syncthreads();\n",
        "    long long began = clock64();\n",
        "    while (!found && clock64() - began < 40000) {}\n",
        RIGHT,
        before="__device__ int seen[64][16], count[64];\n",
    )
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with opened(small_task, "careless_gpu:KeepsVariables") as careless:
        evaluation = evaluate(careless, remembers)
    assert (evaluation.outcome, evaluation.guard) == (Outcome.REJECTED, Guard.GPU_TIME), evaluation.message
    assert evaluate(executor, remembers).ok


@pytest.mark.parametrize(
    ("cheat", "guard"),
    [
        (kernel(CLOCK, f"    if ({TIMED} && (now >> 13) % 2) return;\n", RIGHT), Guard.TIMED_OUTPUTS),
        (
            kernel(
                CLOCK,
                RIGHT,
                f"    if ({TIMED} && i == 4000 && (now >> 13) % 4 == 1) ((float*)x)[i] = 0.0f;\n",
            ),
            Guard.UNTOUCHED_INPUTS,
        ),
        (kernel(RIGHT, f"    if ({TIMED} && i == 0) out[n] = 1.0f;\n"), Guard.GUARD_BYTES),
        (kernel(RIGHT, f"    if ({TIMED} && i == 0) out[n + 300000] = 1.0f;\n"), Guard.GUARD_BYTES),
        (kernel(RIGHT, f"    if ({TIMED} && i == 0) ((float*)x)[-{PAGE // 4}] = 1.0f;\n"), Guard.GUARD_BYTES),
        (kernel(RIGHT, f"    if (i == 0) out[i + {PAGE // 4}] = 1.0f;\n"), Guard.GUARD_BYTES),
    ],
    ids=[
        "skips by the clock",
        "spoils inputs at times",
        "writes behind",
        "writes far behind",
        "writes to what inputs are restored from",
        "writes to another tensor",
    ],
)
def test_what_happens_only_where_it_is_timed_is_seen(
    executor: GpuExecutor, cheat: Kernel, guard: Guard
) -> None:
    evaluation = evaluate(executor, cheat)
    assert (evaluation.outcome, evaluation.guard) == (Outcome.WRONG_RESULT, guard), evaluation.message
    assert evaluate(executor, kernel(RIGHT)).ok


LOOK = """
    for (long long page = -{pages}; page <= {pages}; ++page) {{
        const float* there = out + page * {words};
        if (page && i < n && there[i] == 2.0f * x[i] && x[i] != 0.0f && isfinite(x[i])) {{ out[i] = 7.0f; return; }}
    }}
"""


def test_the_answer_lies_nowhere_near(executor: GpuExecutor) -> None:
    # As far as pages are mapped without a gap; a read beyond is a crash, and no answer either.
    evaluation = evaluate(executor, kernel(LOOK.format(pages=1, words=PAGE // 4), RIGHT))
    assert evaluation.ok or evaluation.outcome is Outcome.CRASH, evaluation.message
