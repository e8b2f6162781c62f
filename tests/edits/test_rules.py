"""Rules for CUDA C++: what each makes of a kernel, and the kernels that look alike and are left alone."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.edits import triton
from mctskernel.edits.rules import ALL
from tests.edits.kernels import COPY, LINE, PLANE

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
    (LINE, "smaller-blocks", "BLOCK 256 -> 64", [("BLOCK 256 //", "BLOCK 64 //")]),
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
        COPY,
        "coarsen-threads",
        "compute 4 elements per thread along x",
        ["BLOCK * ITEMS)", "int i = (blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x;", "#define ITEMS 4"],
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


def test_values_that_an_assertion_forbids_are_not_proposed(propose: Propose) -> None:
    checked = COPY.replace("256", "64").replace(
        "    int i", '    static_assert(BLOCK >= 64, "two warps");\n    int i'
    )
    assert propose("smaller-blocks", checked) == {}
    assert "BLOCK 64 -> 32" in propose("smaller-blocks", checked.replace(">= 64", ">= 32"))


def test_a_macro_takes_the_values_that_an_assertion_lists(propose: Propose) -> None:
    listed = "static_assert((STAGES == 2 || STAGES == 3 || STAGES == 6) && STAGES * BLOCK < 1536);"
    staged = COPY.replace("__global__", f"#define STAGES 3\n{listed}\n__global__", 1)
    assert list(propose("items-and-tiles", staged)) == ["STAGES 3 -> 2"]
    assert list(propose("items-and-tiles", staged.replace("1536", "1537"))) == [
        "STAGES 3 -> 2",
        "STAGES 3 -> 6",
    ]


# --- kernels that a rule leaves alone, though they look like those that it changes

GUARD = "    if (i < rows * cols) {"
BODY = "out[i] = 2.0f * x[i];"
NOT_ELEMENTWISE = [
    ("        out[i]", "        __syncwarp();\n        out[i]"),
    (BODY, "out[i] = blockIdx.x;"),
    (GUARD, f"    float y = x[i];\n{GUARD}"),
    ("i < rows * cols", "i < rows"),
]
SMALL = [
    *((COPY, "coarsen-threads", *change) for change in NOT_ELEMENTWISE),
    *((COPY, "grid-stride-loop", *change) for change in NOT_ELEMENTWISE),
    (COPY, "unroll", BODY, "if (i) for (int k = 0; k < 4; ++k) out[i] = x[i];"),
    (
        LINE,
        "smaller-blocks",
        "float sum = 0.0f;",
        "__shared__ float s[8]; s[threadIdx.x / 32] = 0.0f; float sum = 0;",
    ),
    *((LINE, rule, "", "") for rule in ("items-and-tiles", "grid-size", "reshaped-blocks")),
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
LOOK_ALIKES: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("softmax", "parallel-rows"): [
        ("sum += expf(", "sum = sum * 0.5f + expf("),
        (STORE, "out[row * cols + col / 2] ="),
        ("float sum = 0.0f", "float sum = 1.0f"),
    ],
    ("softmax", "streaming-hints"): [(STORE, "out[row * cols + col] +="), ("expf(x", "out[row] * expf(x")],
    ("layernorm", "fast-math"): [("float sum = 0.0f", "double sum = 0.0")],
    ("sum", "warp-shuffle-reduction"): [("tile[0];", "tile[1];")],
}


@pytest.mark.parametrize(
    ("name", "rule", "old", "new"),
    [(*key, *change) for key, changes in LOOK_ALIKES.items() for change in changes],
)
def test_a_look_alike_is_left_alone(results: Results, name: str, rule: str, old: str, new: str) -> None:
    source = start(name)
    assert old in source
    assert results(task_of(name), source, rule)
    assert results(task_of(name), source.replace(old, new), rule) == []


def test_the_page_about_the_rules_lists_each_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| ([\w -]+) \|", page, re.MULTILINE)
    assert listed == [(rule.name, rule.category.value) for rule in (*ALL, *triton.ALL)]
    assert len(dict(listed)) == len(listed)
