"""Rules for CUDA C++: what each makes of a kernel, and the kernels that look alike and are left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.evaluation import Resources
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import plan_of
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits import triton
from mctskernel.edits.rules import ALL
from tests.edits.conftest import build
from tests.edits.kernels import ATOMICS, COPY, FLAT, LINE, LITERAL, PLANE, THREE_LAUNCHES, TIED, TILE

Propose = Callable[..., dict[str, str]]
Results = Callable[..., list[str]]

TASKS = Path(mctskernel.tasks.builtin.__path__[0])


@cache
def task_of(name: str) -> Task:
    return load_task(TASKS / name)


def start(name: str) -> str:
    return task_of(name).starting_kernel.source


# --- small kernels of a matrix: a rule, the title of one of its edits, and the changes that it makes

REWRITES = [
    (
        COPY,
        "pointer-qualifiers",
        "add __restrict__, const to the pointers",
        [("(float* x, float* out", "(const float* __restrict__ x, float* __restrict__ out")],
    ),
    (
        COPY,
        "launch-bounds",
        "add __launch_bounds__(BLOCK)",
        [("void f(", "void __launch_bounds__(BLOCK) f(")],
    ),
    (LINE, "smaller-blocks", "BLOCK 256 -> 64", [("BLOCK 256 //", "BLOCK 64 //")]),
    (LINE, "larger-blocks", "BLOCK 256 -> 1024", [("BLOCK 256 //", "BLOCK 1024 //")]),
    (
        PLANE,
        "reshaped-blocks",
        "BLOCK_X 16 -> 32, BLOCK_Y 16 -> 8",
        [("BLOCK_X 16", "BLOCK_X 32"), ("BLOCK_Y 16", "BLOCK_Y 8")],
    ),
    (
        LINE,
        "unroll",
        "unroll loop 1 over k by 4",
        [("        for (int k", "        #pragma unroll 4\n        for (int k")],
    ),
    (
        TILE,
        "pad-shared-arrays",
        "pad the shared array tile by one column",
        [("tile[TILE][TILE]", "tile[TILE][TILE + 1]")],
    ),
]


@pytest.mark.parametrize(("source", "rule", "title", "changes"), REWRITES, ids=[case[1] for case in REWRITES])
def test_a_rule_changes_this_and_nothing_else(
    propose: Propose, source: str, rule: str, title: str, changes: list[tuple[str, str]]
) -> None:
    proposed = propose(rule, source)
    expected = source
    for old, new in changes:
        assert old in expected
        expected = expected.replace(old, new)
    assert proposed[title] == expected


FRAGMENTS = [
    (
        LITERAL,
        "name-block-size",
        "set the block size along x to 128 (BLOCK, was 256)",
        ["#define BLOCK 128\n", 'block = ["BLOCK"]', '"ceil_div(rows * cols, BLOCK)"', "blockIdx.x * BLOCK"],
    ),
    (
        COPY,
        "coarsen-threads",
        "compute 4 elements per thread along x",
        ["BLOCK * ITEMS)", "int i = (blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x;", "#define ITEMS 4"],
    ),
    (
        COPY.replace("    if (i < rows * cols) {\n", "    if (i >= rows * cols) return; {\n"),
        "coarsen-threads",
        "compute 2 elements per thread along x",
        ["if (i >= rows * cols) continue;"],
    ),
    (
        COPY,
        "grid-stride-loop",
        "grid-stride loop with 1056 blocks",
        ["min(GRID, ceil_div(rows * cols, BLOCK))", "i < rows * cols; i += gridDim.x * BLOCK) {"],
    ),
]


@pytest.mark.parametrize(("source", "rule", "title", "fragments"), FRAGMENTS)
def test_a_rule_writes_these_lines(
    propose: Propose, source: str, rule: str, title: str, fragments: list[str]
) -> None:
    text = propose(rule, source)[title]
    assert [fragment for fragment in fragments if fragment not in text] == []


def test_block_sizes_stay_whole_warps_within_the_registers(propose: Propose) -> None:
    assert list(propose("smaller-blocks", LINE.replace("256", "64"))) == ["BLOCK 64 -> 32"]
    resources = (Resources("f", registers=100, shared_bytes=0),)
    assert list(propose("larger-blocks", LINE, resources=resources)) == ["BLOCK 256 -> 512"]
    tight = propose("launch-bounds", COPY, resources=(Resources("f", registers=64, shared_bytes=0),))
    assert "add __launch_bounds__(BLOCK, 5)" in tight
    assert "add __launch_bounds__(BLOCK, 4)" not in tight


def test_values_that_an_assertion_forbids_are_not_proposed(propose: Propose) -> None:
    checked = COPY.replace("256", "64").replace(
        "    int i", '    static_assert(BLOCK >= 64, "two warps");\n    int i'
    )
    assert propose("smaller-blocks", checked) == {}
    assert "BLOCK 64 -> 32" in propose("smaller-blocks", checked.replace(">= 64", ">= 32"))


# --- kernels that a rule leaves alone, though they look like those that it changes

GUARD = "    if (i < rows * cols) {"
BODY = "out[i] = 2.0f * x[i];"
NOT_ELEMENTWISE = [
    ("        out[i]", "        __syncwarp();\n        out[i]"),
    ("    int i", "    __shared__ float s[1];\n    int i"),
    (BODY, "out[i] = blockIdx.x;"),
    (BODY, "if (i > 5) return; out[i] = x[i];"),
    (GUARD, f"    float y = x[i];\n{GUARD}"),
    ("i < rows * cols", "i < rows"),
    (GUARD, f"    i += 1;\n{GUARD}"),
]
SMALL = [
    *((COPY, "coarsen-threads", *change) for change in NOT_ELEMENTWISE),
    *((COPY, "grid-stride-loop", *change) for change in NOT_ELEMENTWISE),
    (COPY, "launch-bounds", 'block = ["BLOCK"]', 'block = ["min(BLOCK, rows * cols)"]'),
    (COPY, "unroll", BODY, "if (i) for (int k = 0; k < 4; ++k) out[i] = x[i];"),
    (TILE, "pad-shared-arrays", "tile[threadIdx.x][threadIdx.y]", "tile[threadIdx.y][threadIdx.x]"),
    (TILE, "pad-shared-arrays", "float tile[TILE][TILE]", "double tile[TILE][TILE]"),
    (
        TILE,
        "pad-shared-arrays",
        "__syncthreads();",
        "__syncthreads(); float* flat = (float*)tile; flat[0] = 1.0f;",
    ),
    (LITERAL, "name-block-size", BODY, "out[i] = x[i] + 256;"),
    (LITERAL, "name-block-size", BODY, "out[i] = x[i] + (threadIdx.x == 255);"),
    (LITERAL, "name-block-size", "    int i", "    __shared__ float s[64];\n    int i"),
    (
        LINE,
        "smaller-blocks",
        "float sum = 0.0f;",
        "__shared__ float s[8]; s[threadIdx.x / 32] = 0.0f; float sum = 0;",
    ),
    *((LINE, rule, "", "") for rule in ("items-and-tiles", "grid-size", "reshaped-blocks")),
    *((TIED, rule, "", "") for rule in ("reshaped-blocks", "smaller-blocks", "larger-blocks")),
]


@pytest.mark.parametrize(("source", "rule", "old", "new"), SMALL)
def test_a_small_kernel_is_left_alone(propose: Propose, source: str, rule: str, old: str, new: str) -> None:
    assert old in source
    assert propose(rule, source.replace(old, new) if old else source) == {}


@pytest.mark.parametrize(
    "use", ["x[i] = 0.0f;", "float* p = x; p[i] = 0.0f;", "atomicAdd(&x[i], 1.0f);", "x[i] += 1.0f;"]
)
def test_a_pointer_that_may_be_written_through_is_not_const(propose: Propose, use: str) -> None:
    assert list(propose("pointer-qualifiers", COPY.replace(BODY, f"{use} out[i] = x[i];"))) == [
        "add __restrict__ to the pointers"
    ]
    twice = COPY.replace('"x", "out"', '"out", "out"')
    assert list(propose("pointer-qualifiers", twice)) == ["add const to the pointers"]


STORE = "out[row * cols + col] ="
READS = "grid[i - width] + grid[i + width] + grid[i - 1] + grid[i + 1]"
TURNED = "out[col * rows + row] = x[row * cols + col];"
FIRST = "tile[tid] = i < n ? x[i] : 0.0f;"
LOOK_ALIKES: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("cumsum", "scan-rows"): [
        ("sum += x", "sum = 0.5f * sum + x"),
        ("float sum = 0.0f", "float sum = 1.0f"),
        (f"{STORE} sum", "out[row * cols + col / 2] = sum"),
        (f"{STORE} sum", f"if (sum > 0.0f) {STORE} sum"),
        ("sum += x", f"{STORE} sum; sum += x"),
    ],
    ("histogram", "private-counts"): [
        ("&counts[values[i]], 1);", "&counts[values[i]], 1); counts[0] = 1;"),
        ("atomicAdd(", "int before = atomicAdd("),
        ("atomicAdd(", "atomicMax("),
        ("int* counts, int n", "float* counts, int n"),
    ],
    ("matmul_bf16", "matmul-tensor-cores"): [
        ("const __nv_bfloat16* b", "const float* b"),
        ("__bfloat162float(a[row * K + k])", "fabsf(__bfloat162float(a[row * K + k]))"),
        ("int k = 0", "int k = 1"),
    ],
    ("int4_matmul", "matmul-shared-tiles"): [
        ("pair >> 4;", "pair >> row;"),
        ("int code =", "char code = 0.5f +"),
    ],
    ("matmul", "matmul-shared-tiles"): [
        ("b[k * N + col]", "b[k * N + row]"),
        ("row < M && col < N", "row < M || col < N"),
    ],
    ("matmul", "matmul-register-blocks"): [("sum += a", "sum -= a")],
    ("softmax", "parallel-rows"): [
        ("sum += expf(", "sum = sum * 0.5f + expf("),
        (STORE, "out[row * cols + col / 2] ="),
        ("float sum = 0.0f", "float sum = 1.0f"),
    ],
    ("softmax", "streaming-hints"): [(STORE, "out[row * cols + col] +="), ("expf(x", "out[row] * expf(x")],
    ("layernorm", "fast-math"): [("float sum = 0.0f", "double sum = 0.0")],
    ("sum", "warp-shuffle-reduction"): [("tile[0];", "tile[1];")],
    ("sum", "strided-block-reduction"): [
        ("x[i] : 0.0f", "x[i] : 1.0f"),
        ("i < n ? x[i]", "i < n - 1 ? x[i]"),
        (FIRST, f"{FIRST} if (i == 0) partial[0] = 0.0f;"),
        (FIRST, "tile[tid] = i < n ? x[i] + blockIdx.x : 0.0f;"),
        ("partial[blockIdx.x] = tile[0];", "partial[blockIdx.x] = sqrtf(tile[0]);"),
        ("partial[blockIdx.x] = tile[0];", "partial[blockIdx.x + 1] = tile[0];"),
        ("sum += partial[i];", "sum += partial[i] * partial[i];"),
        ("sum += partial[i];", "sum = fmaxf(sum, partial[i]);"),
        ("out[0] = tile[0];", "out[0] = tile[0] + partial[0];"),
        ("int i = tid; i < count", "int i = tid + 1; i < count"),
        ('"partial", "out", "ceil_div(n, BLOCK)"', '"partial", "out", "n"'),
        ('dtype = "float32"', 'dtype = "float32"\nzero = true'),
    ],
    ("conv3x3", "stage-grid-axis"): [
        ("blockIdx.z / filters", "blockIdx.z / channels"),
        ("+ channel) * height + y", "+ channel + filter) * height + y"),
        ("float sum = 0.0f;", "float sum = filter;"),
        ("sum += __bf", "sum *= 0.5f; sum += __bf"),
        ("(filter * channels", "(row + filter * channels"),
        ("channel = 0", "channel = 1"),
    ],
    ("stencil", "float4-stencils"): [
        (READS, "grid[i]"),
        ("grid[i - 1]", "grid[2 * i]"),
        ("grid[i - 1]", "(x > 3 ? grid[i - 1] : 0.0f)"),
        ("center * grid[i]", "center * out[i]"),
        ("out[i] = center", "grid[i] = 0.0f; out[i] = center"),
        ("x == 0 ||", "x == 0 || grid[i] > 0.0f ||"),
        ("int i = y * width + x;", "int i = y * width + x; i += 1;"),
        ('"grid", "out"', '"out", "out"'),
        ("const float* grid", "const double* grid"),
    ],
    ("transpose", "transpose-tiles"): [
        (TURNED, f"{STORE} x[row * cols + col];"),
        (TURNED, "out[col * rows + row] += x[row * cols + col];"),
        (TURNED, "out[col * rows + row] = x[row * cols + 2 * col];"),
        (TURNED, "out[col * rows + row] = x[row * cols + col] + threadIdx.x;"),
        (TURNED, f"{TURNED} out[0] = 1.0f;"),
        ("row < rows", "row <= rows"),
        ('"x", "out"', '"out", "out"'),
        ("const float* x, float* out", "const char* x, float* out"),
    ],
    ("attention", "tiled-attention"): [
        ("key <= query; key += BLOCK / 32", "key <= query; key += BLOCK / 16"),
        ("int lane = tid % 32", "int lane = tid % 16"),
        ("int query = blockIdx.x", "int query = blockIdx.x / 2"),
        ("k[(first + key) * dim + i]", "k[(first + query) * dim + i]"),
        ("v[(first + key) * dim + i]", "k[(first + key) * dim + i]"),
        ("out[(first + query) * dim + i] =", "out[(first + query) * dim + i] +="),
        ("largest = fmaxf(largest, weights[key])", "largest = fminf(largest, weights[key])"),
        ("expf(weights[key] - largest)", "exp2f(weights[key] - largest)"),
        ("score * scale", "score * scale + 1.0f"),
        ("float scale = rsqrtf(dim)", "float scale = rsqrtf(tid)"),
        ("float sum = 0.0f", "float sum = 1.0f"),
        ("float sum = 0.0f;", "float sum = 0.0f; if (query == 3) return;"),
        ("total / partial[0]", "total / sum"),
        ("key = 0; key <= query", "key = 1; key <= query"),
        ('"q", "k", "v"', '"q", "k", "k"'),
        ('grid = ["seq", "heads"]', 'grid = ["dim", "heads"]'),
        ("__nv_bfloat16* v", "float* v"),
    ],
    ("sum", "warp-atomics"): [
        ("&out[0]", "&out[i]"),
        ("&out[0]", "&out[blockIdx.x]"),
        ("atomicAdd(&", "atomicMax((int*)&"),
        ("        atomicAdd", "        float before = atomicAdd"),
        ("        atomicAdd", "        if (value > 0.0f) atomicAdd"),
        ("float value = x[i];", "float value = x[i] + out[0];"),
        ("#define BLOCK 64", "#define BLOCK 48"),
    ],
    ("transpose", "float4-elements"): [
        ("out[i] = half;", "if (half > 0.0f) out[i] = half;"),
        ("out[i] = half;", "out[i] = half; out[0] = 1.0f;"),
        ("out[i] = half;", "out[2 * i] = half;"),
        ("0.5f * x[i];", "i > 0 ? x[i - 1] : x[i];"),
        ("0.5f * x[i];", "0.5f * x[3 * i];"),
        ("    if (i < n) {", "    int next = i + 1;\n    if (i < n) {"),
        ("const float* x, float* out", "const float* x, double* out"),
        ('"x", "out"', '"out", "out"'),
        ("i < n", "i < n - 1"),
    ],
}


SOURCES = {"warp-atomics": ATOMICS, "float4-elements": FLAT}


@pytest.mark.parametrize(
    ("name", "rule", "old", "new"),
    [(*key, *change) for key, changes in LOOK_ALIKES.items() for change in changes],
)
def test_a_look_alike_is_left_alone(results: Results, name: str, rule: str, old: str, new: str) -> None:
    source = SOURCES.get(rule) or start(name)
    assert old in source
    assert results(task_of(name), source, rule)
    assert results(task_of(name), source.replace(old, new), rule) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- most[i]", "- most[n - 1 - i]"),
        ("- largest[row]", "- largest[rows - 1 - row]"),
        ("i < rows * cols", "i < rows * cols - 1"),
        ("i / cols", "i / (cols + 1)"),
        ("if (i >= n) return;", "if (i >= n - 1) return;"),
        ("largest[row] = most;", "if (most > 0.0f) largest[row] = most;"),
        ("float sum = 0.0f;", "float sum = 0.0f;\n    if (sum > 1.0f) return;"),
        ("float sum = 0.0f;", "__shared__ float sum;"),
        ("float sum = 0.0f;", "float sum = blockIdx.x;"),
        ("out[i] = expf", "if (most < 9.0f) out[i] = expf"),
        ("const float* x, float* out", "const int* x, float* out"),
    ],
)
def test_launches_that_may_differ_in_their_rows_stay_apart(results: Results, old: str, new: str) -> None:
    assert old in THREE_LAUNCHES
    fused = results(task_of("softmax"), THREE_LAUNCHES.replace(old, new), "fuse-rows")
    assert all(len(plan_of(Kernel(text)).launches) > 1 for text in fused)


def test_what_an_earlier_launch_reads_is_not_overwritten_by_a_fused_one(results: Results) -> None:
    backwards = THREE_LAUNCHES.replace("in[i * cols + k] -", "in[(n - 1 - i) * cols + k] -")
    backwards = backwards.replace('"total", "x", "out", "rows"', '"total", "out", "x", "rows"')
    fused = results(task_of("softmax"), backwards, "fuse-rows")
    assert [len(plan_of(Kernel(text)).launches) for text in fused] == [2]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("matmul", "matmul-shared-tiles"),
        ("matmul", "matmul-register-blocks"),
        ("cumsum", "scan-rows"),
        ("histogram", "private-counts"),
        ("transpose", "transpose-tiles"),
    ],
)
def test_names_that_a_rule_uses_too_are_told_apart(results: Results, name: str, rule: str) -> None:
    plan, end, code = start(name).partition("*/")
    taken = {
        "row": "i",
        "col": "at",
        "k": "e",
        "sum": "n",
        "channel": "item",
        "x": "tile",
        "a": "lane",
        "b": "tx",
    }
    code = re.sub(rf"(?<![.\w])({'|'.join(taken)})\b", lambda match: taken[match[0]], code)
    found = results(task_of(name), plan + end + code, rule)
    assert found
    for text in found:
        build(text)


def test_a_row_that_is_written_or_read_on_a_condition_is_not_kept(results: Results) -> None:
    text = results(task_of("softmax"), start("softmax"), "parallel-rows")[0]
    assert results(task_of("softmax"), text, "keep-row")
    in_place = text.replace("const float* x", "float* x").replace(STORE, "x[row * cols + col] =")
    read = "expf(x[row * cols + col] - largest)"
    rare = text.replace(read, f"(col > 0 ? {read} : 0.0f)").replace(
        "largest = fmaxf(largest, x[row * cols + col]);",
        "if (col > 1) largest = fmaxf(largest, x[row * cols + col]);",
    )
    for other in (in_place, rare):
        assert other != text
        assert results(task_of("softmax"), other, "keep-row") == []


def test_only_buffers_that_no_launch_writes_are_read_with_a_hint(results: Results) -> None:
    source = start("spmv")
    assert (
        "__ldg(&values[i]) * __ldg(&x[columns[i]])" in results(task_of("spmv"), source, "read-only-loads")[0]
    )
    changed = source.replace("const float* x", "float* x").replace(
        "y[row] = sum;", "y[row] = sum; x[0] = sum;"
    )
    pointed = source.replace("float sum = 0.0f;", "float sum = 0.0f; const float* other = x;")
    for other in (changed, pointed):
        assert all("ldg(&x[" not in text for text in results(task_of("spmv"), other, "read-only-loads"))


def test_the_page_about_the_rules_lists_each_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| ([\w -]+) \|", page, re.MULTILINE)
    assert listed == [(rule.name, rule.category.value) for rule in (*ALL, *triton.ALL)]
    assert len(dict(listed)) == len(listed)
