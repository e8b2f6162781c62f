"""What is noticed at the shape that is timed, when all that is verified in full is smaller."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.core.evaluation import Check, Guard, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling import needed_values, timed_shapes
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.profiling.priced_blocks import count_priced
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.timed_shapes import TimedInputs, check_timed_shape
from tests.conftest import KERNEL, WriteTask

BODY = """\
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
"""
TWO_LAUNCHES = """\
/*
[[launch]]
kernel = "half"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "kept", "n"]

[[launch]]
kernel = "turned"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["kept", "out", "n"]

[[scratch]]
name = "kept"
dtype = "float32"
shape = ["n"]
*/
extern "C" __global__ void half(const float* x, float* kept, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) kept[n - 1 - i] = x[i];
}

extern "C" __global__ void turned(const float* kept, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = 2.0f * kept[n - 1 - i];
}
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return load_task(write_task())


def checked(task: Task, source: str, seed: int = 0) -> Check | str:
    prepared = Pricing(task, load_architecture("H100"), 0).prepare(Kernel(source), Stages())
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    return check_timed_shape(drawn, prepared.candidate, prepared.modules, np.random.default_rng(seed))


def test_a_right_kernel_passes(task: Task) -> None:
    found = checked(task, KERNEL)
    assert isinstance(found, Check)
    assert found.passed, found.message
    assert found.shape == "n=4096"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    if (i < n) out[i] = (n == 4096 ? 1.0f : 2.0f) * x[i];\n", "'out' is wrong"),
        ("    if (gridDim.x == 64) return;\n" + BODY, "would be written"),
        ("    if (gridDim.x == 64 && i % 64 > 20) return;\n" + BODY, "would be written"),
        ("    if (n == 4096) x += 1 << 20;\n" + BODY, "past the end of x"),
        (
            "    __shared__ float t[64];\n    if (n == 4096) x = t - blockIdx.x * 64;\n" + BODY,
            "nothing has written",
        ),
    ],
)
def test_a_kernel_that_cheats_where_it_is_timed_fails(task: Task, body: str, sentence: str) -> None:
    found = checked(task, KERNEL.replace(BODY, body))
    assert isinstance(found, Check)
    assert not found.passed
    assert sentence in found.message


def test_blocks_that_cheat_where_no_price_is_made_are_found_at_random(task: Task) -> None:
    wrong = KERNEL.replace(
        BODY, "    if (gridDim.x == 64 && blockIdx.x > 2 && blockIdx.x < 31) x = out;\n" + BODY
    )
    found = [checked(task, wrong, seed) for seed in range(12)]
    assert sum(isinstance(each, Check) and not each.passed for each in found) >= 6


def test_short_launches_are_followed_whole(task: Task) -> None:
    found = checked(task, TWO_LAUNCHES)
    assert isinstance(found, Check)
    assert found.passed, found.message
    wrong = checked(task, TWO_LAUNCHES.replace("2.0f * kept", "(n == 4096 ? 1.0f : 2.0f) * kept"))
    assert isinstance(wrong, Check)
    assert "'out' is wrong" in wrong.message


def test_nothing_is_said_where_blocks_of_long_launches_hand_results_to_each_other(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    monkeypatch.setattr(needed_values, "NEEDED_LANES", 0)
    found = checked(task, TWO_LAUNCHES)
    assert isinstance(found, str)
    assert "'turned'" in found


FLAGGED = """\
/*
[[launch]]
kernel = "raise_flag"
grid = [999]
block = [32]
args = ["flag"]

[[launch]]
kernel = "doubled"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "flag", "n"]

[[scratch]]
name = "flag"
dtype = "int32"
shape = [1]
*/
extern "C" __global__ void raise_flag(int* flag) {
    if (blockIdx.x == 700 && threadIdx.x == 0) flag[0] = 77;
}

extern "C" __global__ void doubled(const float* x, float* out, const int* flag, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    float sum = 0.0f;
    for (int k = flag[0] == 77 ? 64 : 1; k > 0; --k) sum = i < n ? 2.0f * ((volatile const float*)x)[i] : 0.0f;
    if (i < n) out[i] = sum;
}
"""


def test_what_earlier_launches_leave_does_not_make_a_launch_longer_than_its_price(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(found := checked(task, FLAGGED), Check)
    assert "where it is priced" in found.message
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    monkeypatch.setattr(timed_shapes, "AWAITED", 0)
    monkeypatch.setattr(needed_values, "NEEDED_LANES", 0)
    assert isinstance(found := checked(task, FLAGGED), Check)
    assert not found.passed
    assert "its price is a guess" in found.message


def test_a_launch_that_names_the_output_and_leaves_it_hides_nothing(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_shapes, "WHOLE", 0)
    second = '[[launch]]\nkernel = "idle"\ngrid = [64]\nblock = [32]\nargs = ["out", "n"]\n*/\n'
    idle = '\nextern "C" __global__ void idle(float* out, int n) {\n    if (n < 0) out[0] = 1.0f;\n}\n'
    plan = KERNEL.replace("*/\n", f"\n{second}", 1) + idle
    right = checked(task, plan)
    assert isinstance(right, Check)
    assert right.passed, right.message
    wrong = checked(task, plan.replace("2.0f * x[i]", "(n == 4096 ? 1.0f : 2.0f) * x[i]"))
    assert isinstance(wrong, Check)
    assert "'out' is wrong" in wrong.message


@pytest.mark.parametrize(
    "condition",
    [
        "clock64() > 1 << 30",  # counted from the start, and run at any time
        "blockIdx.x != gridDim.x / 2",  # priced from the middle
    ],
)
def test_blocks_do_as_much_as_was_priced(task: Task, condition: str) -> None:
    longer = f"""\
    float sum = 0.0f;
    for (int k = {condition} ? 24 : 1; k > 0; --k) sum = i < n ? 2.0f * ((volatile const float*)x)[i] : 0.0f;
    if (i < n) out[i] = sum;
"""
    found = checked(task, KERNEL.replace(BODY, longer))
    assert isinstance(found, Check)
    assert not found.passed
    assert found.guard is Guard.TIMED_OUTPUTS
    assert "where it is priced" in found.message or "at random" in found.message


def test_blocks_that_differ_by_their_nature_are_right(task: Task) -> None:
    causal = """\
    float sum = 0.0f;
    for (int k = blockIdx.x; k >= 0; --k) sum = i < n ? 2.0f * ((volatile const float*)x)[i] : 0.0f;
    if (i < n) out[i] = sum;
"""
    for seed in range(3):
        found = checked(task, KERNEL.replace(BODY, causal), seed)
        assert isinstance(found, Check)
        assert found.passed, found.message


def test_half_of_the_blocks_may_have_nothing_to_do(task: Task) -> None:
    body = """\
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < 64; ++k) sum = 2.0f * ((volatile const float*)x)[i];
    out[i] = sum;
"""
    twice = KERNEL.replace("ceil_div(n, BLOCK)", "2 * ceil_div(n, BLOCK)").replace(BODY, body)
    found = checked(task, twice)
    assert isinstance(found, Check)
    assert found.passed, found.message


def test_a_ticket_is_no_excuse_for_an_output_that_every_block_has_a_share_of(task: Task) -> None:
    lazy = """\
/*
[[launch]]
kernel = "doubled"
grid = ["ceil_div(n, 64)"]
block = [64]
args = ["x", "out", "ticket", "n"]

[[scratch]]
name = "ticket"
dtype = "int32"
shape = [1]
zero = true
*/
extern "C" __global__ void doubled(const float* x, float* out, int* ticket, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (atomicAdd(ticket, 1) >= 0 && n == 4096) return;
    if (i < n) out[i] = 2.0f * x[i];
}
"""
    found = checked(task, lazy)
    assert isinstance(found, Check)
    assert not found.passed
    assert "would be written" in found.message


def test_the_last_gate_looks_at_the_shape_that_the_search_timed(task: Task) -> None:
    cheat = Kernel(KERNEL.replace("2.0f * x[i]", "(n == 4096 ? 1.0f : 2.0f) * x[i]"))
    # Without the guard it passes all that is verified, and what was held out.
    assert ModelDevice(task).evaluate(cheat).ok
    assert ModelDevice(task.held_out).evaluate(cheat).ok
    refused = ModelDevice(task.held_out, searched=task).evaluate(cheat)
    assert (refused.outcome, refused.guard) == (Outcome.WRONG_RESULT, Guard.TIMED_OUTPUTS)
    assert ModelDevice(task.held_out, searched=task).evaluate(Kernel(KERNEL)).ok


SPLIT = """\
/*
[[launch]]
kernel = "scale"
grid = ["ceil_div(n, 64)", 2]
block = [64]
args = ["x", "parts", "arrived", "out", "n"]

[[scratch]]
name = "parts"
dtype = "float32"
shape = [2, "n"]

[[scratch]]
name = "arrived"
dtype = "uint32"
shape = ["ceil_div(n, 64)"]
zero = true
*/
__device__ float worked(float x, int times) {
    for (int i = 0; i < times; ++i) x = __fadd_rn(__fadd_rn(x, 1.0f), -1.0f);
    return x;
}

extern "C" __global__ void scale(const float* x, float* parts, unsigned* arrived, float* out, int n) {
    __shared__ bool last;
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) parts[blockIdx.y * n + i] = worked(x[i], EACH);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrived + blockIdx.x, 1) == 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (i < n) out[i] = worked(__ldcg(parts + i) + __ldcg(parts + n + i), LAST);
}
"""


def test_the_last_of_a_few_blocks_may_write_for_all(task: Task) -> None:
    found = checked(task, SPLIT.replace("EACH", "20").replace("LAST", "0"))
    assert isinstance(found, Check)
    assert found.passed, found.message


def test_work_that_is_left_to_the_last_block_is_priced_nowhere(task: Task) -> None:
    found = checked(task, SPLIT.replace("EACH", "0").replace("LAST", "40"))
    assert isinstance(found, Check)
    assert not found.passed
    assert "together" in found.message


QUEUE = """\
/*
[[launch]]
kernel = "scale"
grid = [16]
block = [64]
args = ["x", "next", "out", "n"]

[[scratch]]
name = "next"
dtype = "uint32"
shape = [16]
zero = true
*/
extern "C" __global__ void scale(const float* x, unsigned* next, float* out, int n) {
    __shared__ unsigned drawn;
    for (;;) {
        if (threadIdx.x == 0) drawn = atomicAdd(next + COUNTER, 1);
        __syncthreads();
        int i = PIECE * 64 + threadIdx.x;
        if (i >= n) return;
        for (int turn = 0; turn < TURNS; ++turn) out[i] = 2.0f * x[i];
        __syncthreads();
    }
}
"""


def test_blocks_that_draw_their_work_from_one_counter_share_it(task: Task) -> None:
    found = checked(task, QUEUE.replace("COUNTER", "0").replace("PIECE", "(int)drawn").replace("TURNS", "1"))
    assert isinstance(found, Check)
    assert found.passed, found.message


def test_a_counter_of_ones_own_makes_no_work_cheaper(task: Task) -> None:
    own = {"COUNTER": "blockIdx.x", "PIECE": "(int)(drawn * 16 + blockIdx.x)", "TURNS": "1"}
    source = QUEUE
    for name, text in own.items():
        source = source.replace(name, text)
    pricing = Pricing(task, load_architecture("H100"), 0)
    prepared = pricing.prepare(Kernel(source), Stages())
    drawn = TimedInputs(task, task.search_shapes[0], 7)
    plan = prepared.candidate.at(task, drawn.shape)
    counted = count_priced(
        prepared.candidate,
        plan.launches[0],
        prepared.modules[0],
        plan,
        buffers={tensor.name: tensor.nbytes(drawn.shape) for tensor in (*task.inputs, *task.outputs)},
        contents=drawn.inputs.__getitem__,
    )
    assert counted is not None
    assert counted.counters == frozenset()
    found = checked(task, source)
    assert isinstance(found, Check)
    assert found.passed, found.message
    # Four pieces of 64 elements for each of 16 blocks, of at least twenty instructions for an element.
    assert counted.middle > 4 * 64 * 20
