"""Edits apply exactly, or say in a sentence why they can't."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mctskernel.core.edit import Block, Category, Edit, Patch
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Loss
from mctskernel.edits.patch import PatchError, apply, as_patch

SOURCE = """\
void f() {
    int a = 1;
    int b = 2;
    if (a) {
        b = 3;
    }
}
"""


def edit(*blocks: tuple[str, str]) -> Edit:
    return Edit(Category.TUNING, "an edit", Patch(tuple(Block(*block) for block in blocks)))


def after(source: str, *blocks: tuple[str, str]) -> str:
    return apply(Kernel(source), edit(*blocks)).source


def test_blocks_apply_in_order_each_to_the_result_of_the_one_before() -> None:
    result = after(SOURCE, ("int a = 1;", "int c = 7;"), ("int c = 7;", "int c = 8;"))
    assert result == SOURCE.replace("int a = 1;", "int c = 8;")


def test_indentation_and_trailing_blanks_may_differ() -> None:
    result = after(SOURCE, ("if (a) {  \n    b = 3;\n}", "if (a) {\n    b = 4;\n    a = 5;\n}"))
    assert result == SOURCE.replace("        b = 3;\n", "        b = 4;\n        a = 5;\n")


def test_line_ends_stay_those_of_the_kernel() -> None:
    result = after(SOURCE.replace("\n", "\r\n"), ("int a = 1;\n    int b = 2;", "int a = 2;\n    int b = 2;"))
    assert result == SOURCE.replace("a = 1", "a = 2").replace("\n", "\r\n")


LINES = st.lists(
    st.sampled_from(["int a;", "  int a;", "b = 1;", "", "}", "for (;;) {", "\tc();"]), max_size=12
)
TEXTS = st.one_of(LINES.map(lambda lines: "\n".join(lines) + "\n"), LINES.map("\n".join))


@given(TEXTS, TEXTS)
@example("int a;\n\n", "\nb = 1;\n")
def test_a_difference_turned_into_blocks_applies_back(before: str, after: str) -> None:
    assume(before.strip() and after.strip() and Kernel(before).identity != Kernel(after).identity)
    change = Edit(Category.TUNING, "an edit", as_patch(before, after))
    assert apply(Kernel(before), change).source == after


REDUCTION = """\
__global__ void total(const float* __restrict__ x, float* out, int n) {
    extern __shared__ float partial[];
    float sum = 0.0f;
    // a grid-stride loop
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += x[i];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();

    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
        __syncthreads();
    }
    float a0 = x[i + 0 * blockDim.x];
    float a1 = x[i + 1 * blockDim.x];
    float a2 = x[i + 2 * blockDim.x];
    float a3 = x[i + 3 * blockDim.x];
}
"""


@pytest.mark.parametrize(
    ("search", "first", "last", "exact"),
    [
        ("    float sum = 0.0f;\n", 3, 3, True),
        ("float sum = 0.0f;\n  // a grid-stride loop", 3, 4, False),
        ("float a2 = x[i+2*blockDim.x];", 19, 19, False),
        # a blank line left out
        ("__syncthreads();\nfor (int half = blockDim.x / 2; half > 0; half /= 2) {", 9, 11, False),
    ],
)
def test_a_search_text_fits_up_to_spacing(search: str, first: int, last: int, exact: bool) -> None:
    result = after(REDUCTION, (search, "    replaced;\n" if exact else "replaced;"))
    lines = REDUCTION.split("\n")
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    assert result.split("\n") == [*lines[: first - 1], f"{indent}replaced;", *lines[last:]]


@pytest.mark.parametrize(
    ("source", "blocks", "loss", "sentence"),
    [
        (SOURCE, [("int z;", "int y;")], Loss.NO_MATCH, "from 'int z;' on, isn't in the source."),
        (SOURCE, [("int ", "long ")], Loss.AMBIGUOUS, "occurs 2 times; add lines that make it unique."),
        (SOURCE, [("a = 1", "a = 2"), ("a = 1", "a = 3")], Loss.NO_MATCH, "Block 2 of 2: its SEARCH text"),
        (
            SOURCE,
            [("int a = 1;", "int a = 1; // the same")],
            Loss.NO_CHANGE,
            "nothing but comments or spacing.",
        ),
        (SOURCE, [], Loss.EMPTY, "The patch has no blocks."),
        (REDUCTION, [("float a4 = x[i + 4 * blockDim.x];", "")], Loss.NO_MATCH, "isn't in the source"),
        (REDUCTION, [("__syncthreads( );", "")], Loss.AMBIGUOUS, "occurs 2 times up to spacing"),
        (
            REDUCTION,
            [("float sum = 0.0f;\n// ...\npartial[threadIdx.x]", "")],
            Loss.NO_MATCH,
            "quote each of them",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_with_a_sentence(
    source: str, blocks: list[tuple[str, str]], loss: Loss, sentence: str
) -> None:
    with pytest.raises(PatchError) as caught:
        after(source, *blocks)
    assert caught.value.loss is loss
    assert sentence in str(caught.value)


def loads(array: str, count: int) -> str:
    return "\n".join(f"float a{i} = {array}[{i}];" for i in range(count))


@pytest.mark.parametrize(
    ("source", "search"),
    [
        ("a\n" * 50_000, "a\n" * 25_000 + "b"),
        (loads("x", 5_000), loads("y", 3_000)),
        ("x" * 100_000, "y" + "x" * 90_000),
        (" " * 200_000 + "a", " " * 100_000 + "b")
    ],
    ids=range(4),
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.timeout(60)
def test_long_texts_take_no_quadratic_time(source: str, search: str) -> None:
    """Quadratic time would be minutes; each takes less than a second."""
    with pytest.raises(PatchError):
        apply(Kernel(source), edit((search, "c")))
