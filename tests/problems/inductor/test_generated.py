"""Parse what torch.compile generates, and refuse what launch plans don't support."""

from __future__ import annotations

import pytest

from mctskernel.problems.inductor.generated import InductorError, read_generated
from tests.problems.inductor import recorded


def test_reads_kernels_calls_and_outputs() -> None:
    module = read_generated(recorded.text("add_rmsnorm"))
    (call,) = module.calls
    assert call.arguments[:5] == (*module.inputs, *module.outputs)
    assert [buffer.dtype for buffer in module.buffers.values()] == ["bfloat16", "bfloat16"]
    assert module.kernels[call.kernel].grid == "Grid1D"
    renamed = read_generated(recorded.text("cross_entropy"))
    assert renamed.outputs == ("buf0",)  # returned as buf2, a reinterpretation of it
    assert renamed.calls[0].arguments[0] == "buf0"
    (kernel,) = read_generated(recorded.text("cumsum")).kernels.values()
    assert [helper.name for helper in kernel.helpers] == ["_triton_helper_fn_add0"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("extern_kernels.mm(arg0_1, arg0_1, out=buf2)", r"calls a library .*: extern_kernels\.mm\."),
        (
            "buf9 = torch.ops.aten.sort.default(arg0_1)",
            r"PyTorch's own operator .*: torch\.ops\.aten\.sort\.default",
        ),
        ("buf9 = reinterpret_tensor(buf2, (1,), (1,), 64)", "a part of a buffer"),
        ("import os", "don't support: import os"),
        ("os.system('true')", "don't support: os.system"),
    ],
)
def test_what_no_plan_can_say_is_refused(statement: str, said: str) -> None:
    before = "            stream0 = get_raw_stream(0)\n"
    text = recorded.text("softmax")
    assert before in text
    with pytest.raises(InductorError, match=said):
        read_generated(text.replace(before, f"            {statement}\n{before}"))


@pytest.mark.parametrize("text", ["", "x = (", "def call(args):\n    return (buf0,)", "x = '\\0'"])
def test_other_texts_are_a_sentence(text: str) -> None:
    with pytest.raises(InductorError, match=r"torch\.compile"):
        read_generated(text)
