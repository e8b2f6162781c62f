"""Parse what torch.compile generates, and refuse what launch plans don't support."""

import ast

import pytest

from mctskernel.problems.inductor.generated import (
    InductorError,
    View,
    kernel_texts,
    read_generated,
    reduction_hint,
)
from tests.problems.inductor import recorded


def test_reads_kernels_calls_and_outputs() -> None:
    module = recorded.module("add_rmsnorm")
    (call,) = module.calls
    names = (*module.inputs, *module.outputs)
    assert call.arguments == (*(View(name) for name in names), "cols", "rows", "cols")
    assert [buffer.dtype for buffer in module.buffers.values()] == ["bfloat16", "bfloat16"]
    assert module.kernels[call.kernel].grid == "Grid1D"
    (kernel,) = recorded.module("cumsum").kernels.values()
    assert [helper.name for helper in kernel.helpers] == ["_triton_helper_fn_add0"]


def test_reads_sizes_grids_and_parts_of_buffers() -> None:
    (call,) = recorded.module("linear_gelu").calls
    blocks = "ceil_div(rows, BLOCK_M) * ceil_div(cols, BLOCK_N)"
    assert call.arguments[-6:] == ("rows", "cols", "k", blocks, 1, 1)
    module = recorded.module("conv_cat")
    assert module.buffers[module.outputs[0]].extents == ("batch", 12, "2 * length")
    parts = [each for call in module.calls for each in call.arguments if isinstance(each, View)]
    assert {each.offset for each in parts if each.buffer in module.outputs} == {0, "8 * length"}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("extern_kernels.mm(arg0_1, arg0_1, out=buf2)", r"calls a library .*: extern_kernels\.mm\."),
        (
            "buf9 = torch.ops.aten.sort.default(arg0_1)",
            r"PyTorch's own operator .*: torch\.ops\.aten\.sort\.default",
        ),
        ("buf9 = empty_strided_cuda((u0, 4), (4, 1), torch.float32)", "a number .* don't support: u0"),
        ("import os", "don't support: import os"),
        ("os.system('true')", "don't support: os.system"),
    ],
)
def test_what_no_plan_can_say_is_refused(statement: str, said: str) -> None:
    before = "            raw_stream0 = get_raw_stream(0)\n"
    text = recorded.text("softmax")
    assert before in text
    with pytest.raises(InductorError, match=said):
        recorded.module("softmax", text.replace(before, f"            {statement}\n{before}"))


@pytest.mark.parametrize(
    ("after", "hint"),
    [
        ("r0_1 + ks0*x0", "INNER"),
        ("x0 + ks0*r0_1", "OUTER"),
        ("ks1*x0 + ks0*r0_1", "DEFAULT"),
        ("r0_1", "DEFAULT"),
    ],
)
def test_finds_out_along_what_a_reduction_reads(after: str, hint: str) -> None:
    (kernel,) = kernel_texts(ast.parse(recorded.text("softmax"))).values()
    assert reduction_hint(kernel.replace("r0_1 + ks0*x0", after)) == hint


@pytest.mark.parametrize("text", ["", "x = (", "def call(args):\n    return (buf0,)", "x = '\\0'"])
def test_other_texts_are_a_sentence(text: str) -> None:
    with pytest.raises(InductorError, match=r"torch\.compile"):
        read_generated(text, {})
