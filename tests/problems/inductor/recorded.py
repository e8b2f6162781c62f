"""Modules that Inductor generated (PyTorch 2.13, for compute capability 9.0) at symbolic sizes.

Comments and the parts that nothing is read of are left out.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path

from mctskernel.core.task import Tensor
from mctskernel.problems.inductor.candidate import Config, candidate_source
from mctskernel.problems.inductor.generated import GeneratedModule, read_generated

FOLDER = Path(__file__).parent
_ROWS = {"s30": "rows", "s68": "cols"}
DIMENSIONS: Mapping[str, Mapping[str, str]] = {
    "softmax": _ROWS,
    "cumsum": _ROWS,
    "add_rmsnorm": _ROWS,
    "linear_gelu": {**_ROWS, "s6": "k"},
    "conv_cat": {"s26": "batch", "s81": "length"},
}
INPUTS: Mapping[str, tuple[Tensor, ...]] = {
    "softmax": (Tensor("x", "float32", ("rows", "cols")),),
    "cumsum": (Tensor("x", "float32", ("rows", "cols")),),
    "add_rmsnorm": (
        Tensor("x", "bfloat16", ("rows", "cols")),
        Tensor("residual", "bfloat16", ("rows", "cols")),
        Tensor("weight", "bfloat16", ("cols",)),
    ),
    "linear_gelu": (
        Tensor("x", "float32", ("rows", "k")),
        Tensor("weight", "float32", ("cols", "k")),
        Tensor("bias", "float32", ("cols",)),
    ),
    "conv_cat": (Tensor("x", "float32", ("batch", 8, "length")), Tensor("weight", "float32", (8, 4, 4))),
}
OUTPUTS: Mapping[str, tuple[Tensor, ...]] = {
    "add_rmsnorm": tuple(Tensor(name, "bfloat16", ("rows", "cols")) for name in ("out0", "out1")),
    "linear_gelu": (Tensor("out", "float32", ("rows", "cols")),),
    "conv_cat": (Tensor("out", "float32", ("batch", 12, "2 * length")),),
}
BLOCKS = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
CONFIG = Config({"XBLOCK": 4, "R0_BLOCK": 64}, 4, 1)


def text(name: str) -> str:
    return (FOLDER / "generated" / f"{name}.txt").read_text()


def module(name: str, source: str = "") -> GeneratedModule:
    return read_generated(source or text(name), DIMENSIONS[name])


def candidate(name: str, source: str = "") -> str:
    from torch._inductor.runtime import triton_helpers  # noqa: PLC0415 - an extra

    read = module(name, source)
    return candidate_source(
        read,
        dict.fromkeys(read.kernels, CONFIG),
        inputs=[each.name for each in INPUTS[name]],
        outputs=[each.name for each in OUTPUTS[name]] if name in OUTPUTS else ["out"],
        helpers=inspect.getsource(triton_helpers),
    )
