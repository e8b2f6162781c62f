"""Compare the counters that `mctskernel.profiling.gpu.cupti` reads with those of `ncu`, on the same kernels.

python -m mctskernel.experiments.compare_counters [--json FILE]

Prints a table of every default metric and kernel, the passes, and what reading counters costs. Needs a GPU whose
counters this user may read, and `ncu` on the PATH.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec
import numpy as np

from mctskernel.core.kernel import Kernel
from mctskernel.experiments.records.provenance import write_result
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.counters import (
    BANK_CONFLICTS,
    DRAM_BYTES,
    DRAM_READ,
    DRAM_THROUGHPUT,
    DRAM_WRITE,
    L2_ATOMICS,
    L2_READS,
    L2_REDUCTIONS,
    L2_SECTORS,
    L2_WRITES,
    SHARED_WAVEFRONTS,
    TIME,
)
from mctskernel.profiling.gpu.cuda_driver import (
    DeviceBuffer,
    Gpu,
    LoadedModule,
    PreparedLaunch,
    open_gpu,
    synchronize,
)
from mctskernel.profiling.gpu.cupti import RangeProfiler

REPEATS = 5
"""Launches of each kernel, whose medians are compared."""

IDLE_DRAM = 10.0
"""Percent of DRAM's peak below which a kernel's DRAM traffic is not compared: it is what others left behind in L2."""

WHOLES = {
    BANK_CONFLICTS: SHARED_WAVEFRONTS,
    DRAM_READ: DRAM_BYTES,
    DRAM_WRITE: DRAM_BYTES,
    L2_READS: L2_SECTORS,
    L2_WRITES: L2_SECTORS,
    L2_ATOMICS: L2_SECTORS,
    L2_REDUCTIONS: L2_SECTORS,
}
"""Counts that are part of others: what they differ by is a fraction of the whole."""

N = 32 << 20
"""Floats in each of the two buffers: 128 MiB, more than twice what the L2 of an H100 holds."""

SOURCE = r"""
#define N (32 << 20)

extern "C" __global__ void copy(const float4* in, float4* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void transpose(const float* in, float* out) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    out[(size_t)x * 4096 + y] = in[(size_t)y * 8192 + x];
}

extern "C" __global__ void bank_conflicts(const float* in, float* out) {
    __shared__ float tile[32][32];
    int x = threadIdx.x, y = threadIdx.y, i = (blockIdx.x * 32 + y) * 32 + x;
    tile[x][y] = in[i];
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 32; ++k) sum += tile[(x + k) & 31][y];
    out[i] = sum;
}

extern "C" __global__ void block_sums(const float* in, float* out) {
    __shared__ float partial[256];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += in[blockIdx.x * 4096 + k * 256 + t];
    partial[t] = sum;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (t < step) partial[t] += partial[t + step];
    }
    if (t == 0) atomicAdd(out, partial[0]);
}

extern "C" __global__ void multiply_adds(const float* in, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x[4], a = in[i], b = 0.5f;
    for (int j = 0; j < 4; ++j) x[j] = j;
    for (int k = 0; k < 512; ++k) {
        for (int j = 0; j < 4; ++j) x[j] = fmaf(x[j], a, b);
    }
    out[i] = x[0] + x[1] + x[2] + x[3];
}

extern "C" __global__ void exponentials(const float* in, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = in[i];
    for (int k = 0; k < (threadIdx.x % 32 < 8 ? 64 : 16); ++k) x = __expf(x) - 1.0f;
    out[i] = x;
}

extern "C" __global__ void tensor_products(const float* in, float* out) {
    float d[4][4] = {};
    // Ones and some more, and not loaded: how long all warps wait for the same few lines is another time each run.
    unsigned a = 0x3f803f80u + threadIdx.x;
    for (int k = 0; k < 512; ++k) {
        for (int j = 0; j < 4; ++j) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                         "{%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3};"
                         : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3]) : "r"(a));
        }
    }
    float sum = 0.0f;
    for (int j = 0; j < 4; ++j) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

LAUNCHES: Mapping[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "copy": ((N // 4 // 256, 1, 1), (256, 1, 1)),
    "transpose": ((256, 128, 1), (32, 32, 1)),
    "bank_conflicts": ((N // 1024, 1, 1), (32, 32, 1)),
    "block_sums": ((N // 4096, 1, 1), (256, 1, 1)),
    "multiply_adds": ((16384, 1, 1), (256, 1, 1)),
    "exponentials": ((65536, 1, 1), (256, 1, 1)),
    "tensor_products": ((2112, 1, 1), (256, 1, 1)),
}
"""Grid and block of each kernel of `SOURCE`, each of which stresses something else."""


class Row(msgspec.Struct, frozen=True):
    """One metric of one kernel, in base units (seconds, bytes, counts, percent)."""

    kernel: str
    metric: str
    cupti: float
    ncu: float

    @property
    def allowed(self) -> float:
        """The largest difference that isn't one: times and DRAM traffic follow the clock and the L2, counts don't."""
        varies = self.metric in (TIME, DRAM_BYTES, DRAM_READ, DRAM_WRITE)
        return 0.005 if self.metric.endswith(".sum") and not varies else 0.03


class Comparison(msgspec.Struct, frozen=True):
    """What was compared, and what reading the counters of one kernel of about 100 us cost, in seconds."""

    gpu: str
    driver: str
    metrics: int
    missing: tuple[str, ...]
    passes: int
    open_seconds: float
    measure_seconds: float
    rows: tuple[Row, ...]

    def difference(self, row: Row) -> float:
        """How far cupti is from ncu in one of the rows, as a fraction of ncu's value.

        Of percentages it is a fraction of their scale; of stalls, which share out the waiting warps, of all that were
        read of the kernel, or of one warp; of counts that are part of another (`WHOLES`), of that one.
        """
        theirs = {each.metric: each.ncu for each in self.rows if each.kernel == row.kernel}
        if "pct" in row.metric:
            scale = 100.0
        elif "issue_stalled" in row.metric:
            scale = max(1.0, sum(value for metric, value in theirs.items() if "issue_stalled" in metric))
        else:
            scale = abs(theirs[WHOLES.get(row.metric, row.metric)])
        return abs(row.cupti - row.ncu) / scale if scale else float(row.cupti != row.ncu)


@dataclass(frozen=True)
class Workbench:
    """The kernels, ready to run, and a buffer larger than the L2."""

    gpu: Gpu
    launches: Mapping[str, PreparedLaunch]
    flush: DeviceBuffer

    def run(self, name: str) -> None:
        """Launch one kernel several times, each time after filling the L2 with something else."""
        for _ in range(REPEATS):
            self.flush.fill(0)
            self.launches[name]()


@contextmanager
def opened_workbench() -> Iterator[Workbench]:
    """Build the kernels and place their data on the first GPU."""
    gpu = open_gpu()
    made = build(Kernel(SOURCE), tuple(LAUNCHES), gpu.architecture)
    if isinstance(made, BuildFailure):
        raise RuntimeError(made.message)
    with ExitStack() as stack:
        buffers = [DeviceBuffer(4 * N), DeviceBuffer(4 * N), DeviceBuffer(2 * gpu.l2_bytes)]
        for buffer in buffers:
            stack.callback(buffer.free)
        buffers[0].write(np.random.default_rng(0).uniform(-1, 1, N).astype(np.float32))
        module = LoadedModule(made.cubin)
        stack.callback(module.unload)
        arguments = [np.uint64(buffer.address).tobytes() for buffer in buffers[:2]]
        launches = {
            name: PreparedLaunch(
                module, made.entries[name], grid=grid, block=block, shared_bytes=0, arguments=arguments
            )
            for name, (grid, block) in LAUNCHES.items()
        }
        yield Workbench(gpu, launches, buffers[2])


def compare(bench: Workbench) -> Comparison:
    """Read every kernel's counters both ways."""
    began = time.perf_counter()
    profiler = RangeProfiler(DEFAULT_METRICS)
    opened = time.perf_counter() - began
    ours = {name: medians(profiler.measure(partial(bench.run, name))) for name in LAUNCHES}
    costs = []
    for _ in range(9):
        began = time.perf_counter()
        profiler.measure(bench.launches["copy"])
        costs.append(time.perf_counter() - began)
    profiler.close()
    theirs = read_with_ncu([name for name in DEFAULT_METRICS if name not in profiler.missing])
    rows = [row for kernel in LAUNCHES for row in compared(kernel, ours[kernel], theirs[kernel])]
    return Comparison(
        bench.gpu.name,
        bench.gpu.driver,
        len(DEFAULT_METRICS) - len(profiler.missing),
        profiler.missing,
        profiler.passes,
        opened,
        statistics.median(costs),
        tuple(rows),
    )


def compared(kernel: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[Row]:
    """What both read of one kernel, where it is more than noise."""
    for metric in DEFAULT_METRICS:
        if metric not in ours or metric not in theirs:
            continue
        if metric in (DRAM_BYTES, DRAM_READ, DRAM_WRITE) and theirs[DRAM_THROUGHPUT] < IDLE_DRAM:
            continue
        yield Row(kernel, metric, ours[metric], theirs[metric])


def read_with_ncu(metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """The medians of each kernel's counters as `ncu` reads them, by kernel, in base units.

    Every pass is a run of the whole program, as ours is: each launch finds the L2 as the program left it.
    """
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--replay-mode", "application"]
    command += ["--metrics", ",".join(metrics)]
    command += ["--csv", "--page", "raw", "--print-units", "base", "--print-fp"]
    command += [sys.executable, "-m", "mctskernel.experiments.compare_counters", "--replay"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(lines) < 3:
        raise RuntimeError(f"ncu failed: {done.stdout}{done.stderr}")
    titles, units, *launches = csv.reader(lines)
    found: dict[str, list[dict[str, float]]] = {}
    for launch in launches:
        kernel = launch[titles.index("Kernel Name")].partition("(")[0]
        found.setdefault(kernel, []).append(
            {
                title: float(text.replace(",", "")) * (1e-9 if unit in {"ns", "nsecond"} else 1.0)
                for title, unit, text in zip(titles, units, launch, strict=True)
                if title in metrics and text not in {"", "n/a", "nan"}
            }
        )
    return {kernel: medians(values) for kernel, values in found.items()}


def medians(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each metric that every launch has."""
    names = [name for name in launches[0] if all(name in launch for launch in launches)]
    return {name: statistics.median(launch[name] for launch in launches) for name in names}


def show(comparison: Comparison) -> None:
    """Print the table."""
    print(f"{comparison.gpu}, CUDA {comparison.driver}")
    print(
        f"{comparison.metrics} metrics in {comparison.passes} passes: {comparison.open_seconds:.2f} s once, "
        f"{comparison.measure_seconds:.3f} s for a kernel of about 100 us; missing: {comparison.missing or 'none'}"
    )
    for kernel in LAUNCHES:
        rows = [row for row in comparison.rows if row.kernel == kernel]
        time_row = next(row for row in rows if row.metric == TIME)
        print(f"\n{kernel}: {time_row.cupti * 1e6:.1f} us")
        print(f"  {'metric':75s} {'cupti':>15s} {'ncu':>15s} {'differ':>8s}")
        for row in rows:
            print(f"  {row.metric:75s} {row.cupti:15.6g} {row.ncu:15.6g} {comparison.difference(row):8.2%}")


@click.command(help=__doc__)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the comparison there too.")
@click.option("--replay", is_flag=True, hidden=True, help="Launch every kernel once: what ncu watches.")
def main(file: Path | None, *, replay: bool) -> None:
    """See the module's docstring."""
    with opened_workbench() as bench:
        if replay:
            for name in LAUNCHES:
                bench.run(name)
            synchronize()
            return
        comparison = compare(bench)
    show(comparison)
    if file is not None:
        write_result(file, comparison)


if __name__ == "__main__":
    main()
