"""What a kernel gains by knowing what its price is made from: nothing, since the last gate makes another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.last_gate import unrepeated
from mctskernel.profiling.model_device import timing, timing_by_chance
from mctskernel.profiling.pricing import Pricing
from mctskernel.profiling.stages import Stages
from tests.conftest import KERNEL, WriteTask

BODY = """\
    if (i < n) {
        out[i] = 2.0f * x[i];
    }
"""


@pytest.fixture
def task(write_task: WriteTask) -> Task:
    return replace(load_task(write_task()), search_shapes=({"n": 1 << 20},))


def unrepeated_times(task: Task, body: str) -> str:
    """What the last gate says about the times of the starting kernel with another body."""
    gpu = load_architecture("H100")
    known, fresh = Pricing(task, gpu, 0), Pricing(task, gpu, 77)
    prepared = known.prepare(Kernel(KERNEL.replace(BODY, body)), Stages())
    with known.disassembling(prepared) as disassemblies:
        (claimed,) = known.price(prepared, disassemblies, Stages())
    with fresh.disassembling(prepared) as disassemblies:
        (again,) = fresh.price(prepared, disassemblies, Stages(), np.random.default_rng(5))
    search = Evaluation(Outcome.OK, Source.MODELLED, timings=(timing(task.search_shapes[0], claimed),))
    gate = Evaluation(Outcome.OK, Source.MODELLED, retimed=(timing_by_chance(task.search_shapes[0], again),))
    return " ".join(unrepeated(gate, search))


def looped(cheap: str, dear: str) -> str:
    """The same work on the blocks that a price is made from, and dearer work on all others."""
    return f"""\
    float sum = 0.0f;
    bool priced = blockIdx.x == 0 || blockIdx.x == gridDim.x / 2 || blockIdx.x == gridDim.x - 1 || gridDim.x < 9;
    int lane = threadIdx.x % 32;
    __shared__ float kept[2048];
    for (int k = threadIdx.x; k < 2048; k += 64) kept[k] = 0.0f;
    __syncthreads();
    if (priced) for (int k = 0; k < 64; ++k) {{ {cheap} }}
    else for (int k = 0; k < 64; ++k) {{ {dear} }}
    if (i < n) out[i] = 2.0f * x[i] + (sum == 12345.678f ? 1.0f : 0.0f);
"""


@pytest.mark.parametrize(
    "body",
    [
        looped(  # sectors
            "sum += ((volatile const float*)x)[(threadIdx.x + 32 * k) % n];",
            "sum += ((volatile const float*)x)[(threadIdx.x * 32 + k) % n];",
        ),
        looped(  # bank conflicts
            "sum += ((volatile float*)kept)[(lane + 32 * k) % 2048];",
            "sum += ((volatile float*)kept)[(lane * 32 + k) % 2048];",
        ),
        looped(  # divergence: as many instructions of threads, by one thread of a warp at a time
            "if (k % 32 == 0) for (int j = 0; j < 20; ++j) sum = sqrtf(sum + x[0]);",
            "if (k % 32 == lane) for (int j = 0; j < 20; ++j) sum = sqrtf(sum + x[0]);",
        ),
        looped(  # instructions that are one in PTX and many in the machine code
            "sum += float((long long)(i + k) * (n + k));", "sum += float((long long)(i + k) / (n + k));"
        ),
        looped(  # a chain of waits in place of independent ones
            "sum += x[(i + k * 37) % n];", "sum += x[(int(sum) % 2 + k * 37 + i) % n];"
        ),
    ],
)
def test_other_blocks_may_not_be_dearer(task: Task, body: str) -> None:
    assert "in other places of the grid" in unrepeated_times(task, body)


def test_clearing_scratch_has_its_price(task: Task) -> None:
    buffer = '[[scratch]]\nname = "kept"\ndtype = "float32"\nshape = [33554432]\nzero = true\n*/\n'
    gpu = load_architecture("H100")
    pricing = Pricing(task, gpu, 0)
    found = []
    for source in (KERNEL, KERNEL.replace("*/\n", "\n" + buffer, 1)):
        prepared = pricing.prepare(Kernel(source), Stages())
        with pricing.disassembling(prepared) as disassemblies:
            (priced,) = pricing.price(prepared, disassemblies, Stages())
        found.append(priced)
    without, cleared = found
    least = 33554432 * 4 / gpu.memory.dram_bytes_per_second
    assert least < cleared.seconds - without.seconds < 1.2 * least
    assert cleared.seconds == pytest.approx(sum(launch.price.seconds for launch in cleared.launches))


def test_inputs_that_are_known_gain_nothing(task: Task) -> None:
    seen = f"{float(task.draw_inputs(task.search_shapes[0], 0)['x'][0])!r}f"
    rounds = f"""\
    float sum = 0.0f;
    for (int k = x[0] == {seen} ? 1 : 64; k > 0; --k)
        sum = i < n ? 2.0f * ((volatile const float*)x)[(i + k * 37) % n] : 0.0f;
    if (i < n) out[i] = 2.0f * x[i] + (sum == 12345.678f ? 1.0f : 0.0f);
"""
    assert "on other inputs" in unrepeated_times(task, rounds)


def test_blocks_that_differ_by_their_nature_are_right(task: Task) -> None:
    causal = """\
    float sum = 0.0f;
    for (int k = blockIdx.x / 512; k >= 0; --k) sum = i < n ? 2.0f * ((volatile const float*)x)[i] : 0.0f;
    if (i < n) out[i] = sum;
"""
    assert not unrepeated_times(task, causal)


def test_the_start_passes(task: Task) -> None:
    assert not unrepeated_times(task, BODY)
