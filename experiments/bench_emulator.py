"""How fast the PTX emulator runs: `python -m mctskernel.experiments.bench_emulator`.

Prints the processor's name, seconds and lane-instructions per second of a checked run, and seconds for counting
one block.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mctskernel.profiling.emulator import Geometry, GlobalMemory, Module, count, execute, parse_ptx
from mctskernel.profiling.nvrtc import compile_source


@dataclass(frozen=True)
class Workload:
    """A kernel `k(const float* a, float* b, int n)`, its launch, and the floats in `a` and `b`."""

    source: str
    geometry: Geometry
    size: int
    floats: tuple[int, int]


_HEAD = 'extern "C" __global__ void k(const float* __restrict__ a, float* __restrict__ b, int n) '
WORKLOADS = {
    "scale": Workload(
        _HEAD + "{ int i = blockIdx.x * 256 + threadIdx.x; if (i < n) b[i] = 2 * a[i]; }",
        Geometry((1024, 1, 1), (256, 1, 1)),
        262_144,
        (262_144, 262_144),
    ),
    "block sum": Workload(
        _HEAD + "{ __shared__ float s[256]; int t = threadIdx.x; float v = 0;"
        " for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) v += a[i]; s[t] = v; __syncthreads();"
        " for (int o = 128; o; o >>= 1) { if (t < o) s[t] += s[t + o];"
        " __syncthreads(); } if (!t) b[blockIdx.x] = s[0]; }",
        Geometry((64, 1, 1), (256, 1, 1)),
        262_144,
        (262_144, 64),
    ),
    "tiled product 128^3": Workload(
        _HEAD + "{ __shared__ float x[16][16], y[16][16]; int tx = threadIdx.x, ty = threadIdx.y;"
        " int r = blockIdx.y * 16 + ty, c = blockIdx.x * 16 + tx; float s = 0;"
        " for (int k = 0; k < n; k += 16) { x[ty][tx] = a[r * n + k + tx];"
        " y[ty][tx] = a[(k + ty) * n + c]; __syncthreads();"
        " for (int j = 0; j < 16; j++) s += x[ty][j] * y[j][tx]; __syncthreads(); } b[r * n + c] = s; }",
        Geometry((8, 8, 1), (16, 16, 1)),
        128,
        (16_384, 16_384),
    ),
    "row softmax": Workload(
        _HEAD + "{ const float* x = a + blockIdx.x * n; float m = -1e30f, s = 0;"
        " for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, x[i]);"
        " for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));"
        " for (int i = threadIdx.x; i < n; i += 32) s += __expf(x[i] - m);"
        " for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);"
        " for (int i = threadIdx.x; i < n; i += 32) b[blockIdx.x * n + i] = __expf(x[i] - m) / s; }",
        Geometry((64, 1, 1), (32, 1, 1)),
        1024,
        (65_536, 65_536),
    ),
}


def compile_ptx(source: str) -> str:
    made = compile_source(source, "kernel.cu", ("-arch=sm_90", "--std=c++17", "--generate-line-info"))
    if isinstance(made, str):
        raise RuntimeError(made)
    return made.ptx


def checked(module: Module, workload: Workload) -> tuple[float, float]:
    """Seconds of a run with every check on, code generation included, and lane-instructions per second."""
    memory = GlobalMemory()
    values = np.random.default_rng(0).standard_normal(workload.floats[0]).astype(np.float32)
    arguments = [
        memory.add("a", values, writable=False),
        memory.add("b", 4 * workload.floats[1]),
        workload.size,
    ]
    done = execute(module, "k", workload.geometry, arguments, memory)
    if done.findings:
        raise RuntimeError(done.findings[0].message)
    return done.seconds, done.lane_instructions / done.seconds


def counted(module: Module, workload: Workload) -> float:
    """Seconds of counting one block, code generation included."""
    memory = GlobalMemory()
    arguments = [memory.add(n, 4 * f, virtual=True) for n, f in zip("ab", workload.floats, strict=True)]
    return count(module, "k", workload.geometry, [*arguments, workload.size], memory).seconds


def processor() -> str:
    """The processor's name, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    print(f"{processor()}, one core")
    print(f"{'kernel':22}{'parse s':>9}{'run s':>9}{'G lane-inst/s':>15}{'count s':>9}")
    for name, workload in WORKLOADS.items():
        text = compile_ptx(workload.source)
        began = time.perf_counter()
        module = parse_ptx(text)
        parsed = time.perf_counter() - began
        seconds, rate = checked(module, workload)
        print(f"{name:22}{parsed:9.4f}{seconds:9.4f}{rate / 1e9:15.3f}{counted(module, workload):9.4f}")


if __name__ == "__main__":
    main()
