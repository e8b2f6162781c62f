"""mbarriers and bulk copies: what waits for them is right and silent, and what doesn't is a race."""

from pathlib import Path

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from tests.hopper_kernels import BULK, OVERLAPPED

WAIT = "    wait_for(barrier, 0);\n"
SYNC = "    __syncthreads();\n    if (threadIdx.x == 0) {\n"

PIPELINE = BULK.source[BULK.source.index("__device__") : BULK.source.index('extern "C"')]
PIPELINE = f"""/*
[[launch]]
kernel = "twice"
grid = [1]
block = [96]
args = ["x", "out", "n"]
*/
{PIPELINE}
__device__ void arrive(unsigned barrier) {{
    asm volatile(
        "{{\\n\\t.reg .b64 state;\\n\\tmbarrier.arrive.shared::cta.b64 state, [%0];\\n\\t}}" ::"r"(barrier) : "memory");
}}

// The first warp copies tiles into two stages; two others use a half each, and say when.
extern "C" __global__ void twice(const float* x, float* out, int n) {{
    __shared__ alignas(16) float tiles[2][16];
    __shared__ alignas(8) unsigned long long full[2], empty[2];
    const int whole = n / 16;
    if (threadIdx.x == 0) {{
        for (int stage = 0; stage < 2; ++stage) {{
            const unsigned filled = (unsigned)__cvta_generic_to_shared(full + stage);
            const unsigned used = (unsigned)__cvta_generic_to_shared(empty + stage);
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(filled) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" ::"r"(used) : "memory");
        }}
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }}
    __syncthreads();
    int k = 0;
    for (int tile = blockIdx.x; tile < whole; tile += gridDim.x, ++k) {{
        const int stage = k % 2, phase = k / 2 % 2;
        const unsigned filled = (unsigned)__cvta_generic_to_shared(full + stage);
        const unsigned used = (unsigned)__cvta_generic_to_shared(empty + stage);
        if (threadIdx.x == 0) {{
            wait_for(used, phase ^ 1);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(filled), "r"(64) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                ::"r"((unsigned)__cvta_generic_to_shared(tiles[stage])), "l"(__cvta_generic_to_global(x + 16 * tile)),
                "r"(64), "r"(filled) : "memory");
        }} else if (threadIdx.x >= 32) {{
            wait_for(filled, phase);
            const int lane = threadIdx.x % 32, i = (threadIdx.x / 32 - 1) * 8 + lane;
            if (lane < 8) out[16 * tile + i] = 2.0f * tiles[stage][i];
            arrive(used);
        }}
    }}
    for (int i = 16 * whole + threadIdx.x; i < n; i += 96) out[i] = 2.0f * x[i];
}}
"""


@pytest.fixture(scope="module")
def device(small_task: Path) -> ModelDevice:
    return ModelDevice(load_task(small_task))


def evaluate(device: ModelDevice, source: str) -> Evaluation:
    return device.evaluate(Kernel(source))


def test_cache_policies_change_nothing_that_is_computed(device: ModelDevice) -> None:
    hinted = (
        PIPELINE.replace(
            "    int k = 0;",
            """    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    int k = 0;""",
        )
        .replace(
            "complete_tx::bytes [%0], [%1], %2, [%3];",
            "complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;",
        )
        .replace('"r"(64), "r"(filled)', '"r"(64), "r"(filled), "l"(policy)')
    )
    assert evaluate(device, hinted).ok


def test_bulk_copies_are_right_and_their_bytes_are_counted(device: ModelDevice) -> None:
    evaluation = evaluate(device, BULK.source)
    assert evaluation.ok, evaluation.message
    assert evaluation.counters["dram__bytes_read.sum"] == 4 * 4096


@pytest.mark.parametrize(
    ("old", "new", "outcome", "sentence"),
    [
        (WAIT, "", Outcome.RACE, "reads byte 4 of shared memory, which thread (0, 0, 0) writes"),
        (SYNC, "    if (threadIdx.x == 0) {\n", Outcome.RACE, "no barrier is between them"),
        ("tile[64]", "tile[60]", Outcome.CRASH, "writes 16 bytes of shared memory"),
        ("x + first)", "x + first + 1)", Outcome.CRASH, "not a multiple of 16"),
    ],
)
def test_what_is_wrong_with_a_bulk_copy_is_found(
    device: ModelDevice, old: str, new: str, outcome: Outcome, sentence: str
) -> None:
    assert old in BULK.source
    evaluation = evaluate(device, BULK.source.replace(old, new, 1))
    assert evaluation.outcome is outcome, evaluation.message
    assert sentence in evaluation.message


@pytest.mark.parametrize("source", [PIPELINE, OVERLAPPED.source], ids=["pipeline", "overlapped"])
def test_a_pipeline_of_warps_and_overlapped_launches_are_right_and_silent(
    device: ModelDevice, source: str
) -> None:
    evaluation = evaluate(device, source)
    assert evaluation.ok, evaluation.message


def test_a_pipeline_that_does_not_wait_until_a_stage_is_empty_races(device: ModelDevice) -> None:
    evaluation = evaluate(device, PIPELINE.replace("wait_for(used, phase ^ 1);", ""))
    assert evaluation.outcome in (Outcome.RACE, Outcome.WRONG_RESULT), evaluation.message
