"""Which of a GPU's ceilings binds a kernel."""

import pytest

from mctskernel.core.evaluation import Timing
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.ceilings import Ceilings, roofline, uses_tensor_cores
from mctskernel.profiling.counters import TENSOR_ACTIVE, TENSOR_BUSY
from mctskernel.profiling.guardrails import quarantine_reason
from mctskernel.tasks.builtin import builtin_tasks

CEILINGS = Ceilings(copy_bytes_per_second=3e12, fp32_flops_per_second=6e13, tensor_flops_per_second=1e15)
SCALAR = "fma.rn.f32 %f1, %f2, %f3, %f4; // mma.sync would be faster"
FMA = """extern "C" __global__ void probe(float* x) { x[threadIdx.x] = fmaf(x[0], x[1], x[2]); }"""
MMA = """extern "C" __global__ void probe(float* x) {
    unsigned a = threadIdx.x;
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(((double*)x)[0]), "+d"(((double*)x)[1]) : "d"((double)a), "d"((double)a));
}"""
WGMMA = """extern "C" __global__ void probe() { asm volatile("wgmma.fence.sync.aligned;"); }"""
TENSOR = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};"


@pytest.fixture(scope="module")
def matmul() -> Task:
    return load_task(builtin_tasks()["matmul"])


def flops_per_second(task: Task, ptx: str, counters: dict[str, float] | None = None) -> float:
    return roofline(task, [ptx], counters or {}, CEILINGS, 50 << 20).flops_per_second


def test_tensor_instructions_that_never_run_raise_no_ceiling(matmul: Task) -> None:
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 0.0}) == 6e13
    assert flops_per_second(matmul, TENSOR, {TENSOR_BUSY: 0.3697}) == 6e13
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 12.0}) == 1e15
    # A wgmma keeps the pipe busy for over a hundred cycles: few are executed.
    assert flops_per_second(matmul, TENSOR, {TENSOR_ACTIVE: 0.8, TENSOR_BUSY: 95.0}) == 1e15
    assert flops_per_second(matmul, SCALAR, {TENSOR_ACTIVE: 12.0}) == 6e13


def test_a_time_that_only_tensor_cores_reach_is_quarantined_without_them(matmul: Task) -> None:
    shape = matmul.search_shapes[0]
    flops = 2.0 * shape["M"] * shape["N"] * shape["K"]
    seconds = flops / 1.2e14
    timings = [Timing(shape_label(each), seconds, seconds, seconds) for each in matmul.search_shapes]
    scalar = roofline(matmul, [SCALAR], {}, CEILINGS, 50 << 20)
    tensor = roofline(matmul, [TENSOR], {}, CEILINGS, 50 << 20)
    assert "can't have done the work" in quarantine_reason(matmul, timings, scalar)
    assert quarantine_reason(matmul, timings, tensor) == ""


@pytest.mark.parametrize(
    ("source", "architecture", "found"),
    [(FMA, "sm_90", False), (MMA, "sm_90", True), (WGMMA, "sm_90a", True)],
    ids=["fma", "mma", "wgmma"],
)
def test_what_the_compiler_writes_is_recognised(source: str, architecture: str, found: bool) -> None:
    made = build(Kernel(source), ("probe",), architecture)
    assert isinstance(made, Build)
    assert uses_tensor_cores([made.ptx], {}) is found
