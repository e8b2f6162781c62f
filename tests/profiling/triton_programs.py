"""Triton modules for the tests, and how they are built and emulated without a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import ResolvedPlan, plan_of, resolve
from mctskernel.profiling.arguments import bind, parameter_types
from mctskernel.profiling.build import BuildFailure
from mctskernel.profiling.candidate import Specialised
from mctskernel.profiling.emulator import Finding, Geometry, GlobalMemory, execute, parse_ptx
from mctskernel.profiling.source_rules import breach
from mctskernel.profiling.triton.build import build_triton

Array = npt.NDArray[Any]

HEADER = "import triton\nimport triton.language as tl\n"


@dataclass(frozen=True)
class Emulation:
    """What a module did: its buffers afterwards, and what the emulator found."""

    arrays: Mapping[str, Array]
    findings: tuple[Finding, ...]


def module(
    body: str,
    kernel: str,
    args: list[str],
    *,
    grid: Sequence[str] = ("1",),
    constexprs: Mapping[str, Number | str] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
) -> str:
    """A Triton module with one launch, of everything below the imports."""
    given = ", ".join(f"{name} = {value!r}" for name, value in (constexprs or {}).items())
    return (
        f'"""\n[[launch]]\nkernel = "{kernel}"\ngrid = {list(grid)!r}\nargs = {args!r}\nconstexprs = {{ {given} }}\n'
        f'num_warps = {num_warps}\nnum_stages = {num_stages}\n"""\n{HEADER}{body}'
    )


def plan(source: str, names: Mapping[str, Number], buffers: Mapping[str, str]) -> ResolvedPlan:
    """The module's launch plan at one shape."""
    kernel = Kernel(source, Language.TRITON)
    return resolve(plan_of(kernel), {**kernel.macros, **names}, buffers.keys())


def built(
    source: str, plans: list[ResolvedPlan], dtypes: Mapping[str, str], architecture: str = "sm_90"
) -> Specialised:
    """The module built for the plans, of which the first is searched at."""
    kernel = Kernel(source, Language.TRITON)
    assert breach(kernel) == ""
    made = build_triton(kernel, plans, 1, architecture, dtypes)
    assert not isinstance(made, BuildFailure), f"{made.message}\n{made.log}"
    return made


def emulate(
    source: str, arrays: Mapping[str, Array], names: Mapping[str, Number], architecture: str = "sm_90"
) -> Emulation:
    """Build and emulate a module over copies of the arrays."""
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    resolved = plan(source, names, dtypes)
    made = built(source, [resolved], dtypes, architecture)
    memory = GlobalMemory()
    addresses = {name: memory.add(name, array.copy()) for name, array in arrays.items()}
    findings: list[Finding] = []
    for launch in resolved.launches:
        ready, index = made.launches[launch]
        build = made.builds[index]
        entry = build.entries[launch.kernel]
        arguments = bind(ready, parameter_types(build.ptx, entry), addresses)
        geometry = Geometry(ready.grid, ready.block, ready.shared_bytes)
        findings.extend(execute(parse_ptx(build.ptx), entry, geometry, arguments, memory).findings)
    results = {name: memory.array(name, array.dtype).reshape(array.shape) for name, array in arrays.items()}
    return Emulation(results, tuple(findings))


def rounded(array: Array, dtype: str) -> Array:
    """An array in another element type."""
    return np.asarray(array, dtype)


MATMUL = """
@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        x = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        there = (inner[:, None] < k) & (columns[None, :] < n)
        y = tl.load(b + inner[:, None] * n + columns[None, :], mask=there, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))
"""

ATTENTION = """
@triton.jit
def attention(q, k, v, out, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    depth = tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + depth[None, :], mask=rows[:, None] < length, other=0.0)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        keys = start + tl.arange(0, BN)
        key = tl.load(k + head + keys[None, :] * D + depth[:, None], mask=keys[None, :] < length, other=0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((keys[None, :] <= rows[:, None]) & (keys[None, :] < length), score, float("-inf"))
        newest = tl.maximum(largest, tl.max(score, 1))
        p = tl.exp2((score - newest[:, None]) * 1.44269504)
        factor = tl.exp2((largest - newest) * 1.44269504)
        weight = weight * factor + tl.sum(p, 1)
        value = tl.load(v + head + keys[:, None] * D + depth[None, :], mask=keys[:, None] < length, other=0.0)
        total = tl.dot(p.to(value.dtype), value, total * factor[:, None])
        largest = newest
    tl.store(out + head + rows[:, None] * D + depth[None, :], total / weight[:, None], mask=rows[:, None] < length)
"""

TRANSPOSE = """
@triton.jit
def transpose(x, out, rows, columns, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    tile = tl.load(x + i[:, None] * columns + j[None, :], mask=(i[:, None] < rows) & (j[None, :] < columns))
    tl.store(out + j[:, None] * rows + i[None, :], tl.trans(tile), mask=(j[:, None] < columns) & (i[None, :] < rows))
"""

HISTOGRAM = """
@triton.jit
def histogram(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    bins = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(out + bins, 1, mask=i < n)
"""

LOCAL_HISTOGRAM = """
@triton.jit
def histogram(x, out, n, B: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    bins = tl.load(x + i, mask=i < n, other=0)
    counts = tl.histogram(bins, BINS, mask=i < n)
    tl.atomic_add(out + tl.arange(0, BINS), counts)
"""

CUMSUM = """
@triton.jit
def cumsum(x, out, columns, B: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for start in range(0, columns, B):
        j = start + tl.arange(0, B)
        values = tl.load(x + row * columns + j, mask=j < columns, other=0.0)
        sums = tl.cumsum(values, 0)
        tl.store(out + row * columns + j, sums + carry, mask=j < columns)
        carry += tl.sum(values, 0)
"""

SCAN = """
@triton.jit
def combine(a, x, b, y):
    return a * b, x * b + y


@triton.jit
def scan(a, x, out, columns, B: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, B)
    factor = tl.load(a + row * columns + j, mask=j < columns, other=1.0)
    value = tl.load(x + row * columns + j, mask=j < columns, other=0.0)
    _, result = tl.associative_scan((factor, value), 0, combine)
    tl.store(out + row * columns + j, result, mask=j < columns)
"""

LAYERNORM = """
@triton.jit
def layernorm(x, weight, bias, out, columns, eps, B: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, B)
    value = tl.load(x + row * columns + j, mask=j < columns, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / columns
    centred = tl.where(j < columns, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    w = tl.load(weight + j, mask=j < columns).to(tl.float32)
    b = tl.load(bias + j, mask=j < columns).to(tl.float32)
    tl.store(out + row * columns + j, (centred * scale * w + b).to(out.dtype.element_ty), mask=j < columns)
"""
