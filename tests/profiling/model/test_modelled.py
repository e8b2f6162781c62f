"""Real kernels through the compiler, the disassembler, the emulator and the model: good edits must pay."""

from collections.abc import Callable
from functools import cache

import pytest

from mctskernel.core.evaluation import Bottleneck
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Buffer, plan_of, resolve
from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.profiling import counters
from mctskernel.profiling import pricing as pricing_module
from mctskernel.profiling.architecture import load_architecture
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.emulator import Limits, parse_ptx
from mctskernel.profiling.machine_code.cubin import disassemble
from mctskernel.profiling.pricing import Modelled, Pricing, model_kernel
from mctskernel.profiling.stages import Stages
from mctskernel.tasks.builtin import builtin_tasks

H100 = load_architecture("H100")
N = 1 << 24


def never(name: str) -> Array:
    raise AssertionError(f"the contents of {name} were asked for")


def attempt(source: str, contents: Callable[[str], Array] = never, **sizes: int) -> Modelled | str:
    kernel = Kernel(source)
    plan = plan_of(kernel)
    built = build(kernel, [launch.kernel for launch in plan.launches])
    assert isinstance(built, Build), built.message
    buffers = sizes or {"x": 4 * N, "y": 4 * N}
    resolved = resolve(plan, {"n": N, **kernel.macros}, dict.fromkeys(buffers, Buffer("float32", (N,))))
    candidate = Candidate(kernel, (resolved,), (built,), tuple((each, 0) for each in resolved.launches))
    return model_kernel(
        candidate,
        lambda _: parse_ptx(built.ptx),
        lambda _: disassemble(built.cubin),
        resolved,
        H100,
        stages=Stages(),
        buffers=buffers,
        contents=contents,
    )


@cache
def modelled(source: str) -> Modelled:
    found = attempt(source)
    assert isinstance(found, Modelled), found
    return found


COPY = """/*
[[launch]]
kernel = "k"
grid = ["n // 256"]
block = [256]
args = ["x", "y"]
*/
extern "C" __global__ void k(const float* x, float* y) {
    int i = blockIdx.x * 256 + threadIdx.x;
    y[i] = x[INDEX];
}
"""
COALESCED = COPY.replace("INDEX", "i")
STRIDED = COPY.replace("INDEX", "(i * 32) % (1 << 24) + i / (1 << 19)")
TRANSPOSE = """/*
[[launch]]
kernel = "k"
grid = [128, 128]
block = [32, 8]
args = ["x", "y"]
*/
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float tile[32][32 + PAD];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = x[(r + j) * 4096 + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) y[(r + j) * 4096 + c] = tile[threadIdx.x][threadIdx.y + j];
}
"""


def test_a_copy_is_bound_by_dram_at_the_true_traffic() -> None:
    found = modelled(COALESCED)
    assert found.counters[counters.DRAM_BYTES] == pytest.approx(8 * N, rel=0.02)
    assert found.counters[counters.SECTORS_PER_LOAD] == pytest.approx(4.0)
    assert found.counters[counters.LOAD_REQUESTS] == N / 32
    assert found.diagnosis.causes[0].bottleneck in {Bottleneck.DRAM_BANDWIDTH, Bottleneck.LAUNCH_OVERHEAD}


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin_tasks())
def test_counted_traffic_is_at_least_compulsory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sampling sectors errs by aside, it is before it is raised to that."""
    monkeypatch.setattr(pricing_module, "_at_least", lambda found, *_: found)
    task = load_task(builtin_tasks()[name], Language.CUDA)
    pricing = Pricing(task, H100, 0)
    prepared = pricing.prepare(task.starting_kernel, Stages())
    with pricing.disassembling(prepared) as disassemblies:
        prices = pricing.price(prepared, disassemblies, Stages())
    for shape, found in zip(task.search_shapes, prices, strict=True):
        read, written = (0.99 * sum(t.nbytes(shape) for t in of) for of in (task.inputs, task.outputs))
        assert found.counters[counters.DRAM_READ] >= read
        assert found.counters[counters.DRAM_WRITE] >= written
        assert 32 * found.counters[counters.L2_READS] >= read
        assert 32 * found.counters[counters.L2_WRITES] >= written


def test_uncoalesced_loads_cost_and_are_named_with_their_line() -> None:
    found = modelled(STRIDED)
    assert found.seconds > 1.5 * modelled(COALESCED).seconds
    cause = next(c for c in found.diagnosis.causes if c.bottleneck is Bottleneck.UNCOALESCED_ACCESS)
    assert "load of x (line 10) touches 32 sectors where 4 would do, so 8 times" in cause.sentence


def test_bank_conflicts_cost_and_padding_removes_them() -> None:
    conflicts, padded = (modelled(TRANSPOSE.replace("PAD", pad)) for pad in ("0", "1"))
    assert padded.counters[counters.BANK_CONFLICTS] == 0
    assert conflicts.counters[counters.BANK_CONFLICTS] == pytest.approx(31 * N / 32)
    assert conflicts.seconds > 1.2 * padded.seconds
    assert Bottleneck.BANK_CONFLICTS in {cause.bottleneck for cause in conflicts.diagnosis.causes}


def test_a_kernel_that_never_ends_is_said_to_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mctskernel.profiling.model.counting.LIMITS", Limits(block_executions=2_000))
    spinning = COPY.replace("y[i] = x[INDEX]", "while (clock64() >= 0) y[i] = 1.0f")
    found = attempt(spinning)
    assert isinstance(found, str)
    assert "still running after the limit of 2,000 basic blocks" in found
