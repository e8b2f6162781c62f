"""What is read off machine code, against the compiler's own report on the same kernels."""

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code.cubin import resources

PLAIN = """
extern "C" __global__ void k(const float* x, float* out) { out[threadIdx.x] = 2 * x[threadIdx.x]; }
"""
CROWDED = """
extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* x, float* out) {
    float kept[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) kept[i] = x[i * 7 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; ++i) out[i * 5 + threadIdx.x] = kept[95 - i] * kept[i] + kept[(i * 31) % 96];
}
"""
DOUBLES = CROWDED.replace("float", "double").replace("96", "48").replace("95", "47")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", [PLAIN, CROWDED, DOUBLES])
def test_registers_stack_and_spills_are_those_of_the_report(source: str, architecture: str) -> None:
    made = build(Kernel(source), ("k",), architecture)
    assert isinstance(made, Build)
    assert resources(made.cubin, "k") == made.resources_of("k")
    assert (made.resources_of("k").spill_load_bytes > 0) == (source != PLAIN)
