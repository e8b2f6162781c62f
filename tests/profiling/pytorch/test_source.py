"""The first look at a module's source."""

from __future__ import annotations

import pytest

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.profiling.pytorch.source import MAX_SOURCE_CHARACTERS, check_source
from mctskernel.profiling.pytorch.worker_client import ModuleError

PLAIN = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"

TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def relu(x, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.maximum(tl.load(x + at, mask=at < n), 0), mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), 256)
        return out
"""

EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline("m", cpp_sources="", functions=["f"])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.f(x)
"""


def test_a_plain_module_gets_no_warning() -> None:
    assert not check_source(PLAIN, own_kernels=False)


@pytest.mark.parametrize("source", [TRITON, EXTENSION])
def test_a_module_with_kernels_of_its_own_is_accepted(source: str) -> None:
    check_source(source, own_kernels=True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PLAIN, "defines none"),
        (
            TRITON.replace("relu[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), 256)", "out = x.relu()"),
            "launches none",
        ),
        (
            TRITON.replace(
                "        return out", "        try:\n            return out\n        except Exception:\n"
            )
            + "            return torch.relu(x)\n",
            "falls back",
        ),
    ],
)
def test_a_module_without_is_refused(source: str, words: str) -> None:
    with pytest.raises(ModuleError, match=words) as refused:
        check_source(source, own_kernels=True)
    assert (refused.value.outcome, refused.value.guard) == (Outcome.REJECTED, Guard.FOREIGN_CALLS)


@pytest.mark.parametrize(
    "line",
    [
        "import gc",
        "from inspect import stack",
        "import sys; sys._getframe()",
        "torch.cuda.synchronize = print",
        "torch.Tensor.copy_ = print",
        "import time; setattr(time, 'time', 0)",
        "import threading",
        "try:\n    pass\nexcept Exception:\n    pass",
    ],
)
def test_an_oddity_is_a_warning_and_no_refusal(line: str) -> None:
    assert check_source(f"{PLAIN}\n{line}\n", own_kernels=False)


@pytest.mark.parametrize("source", ["class", "x = 1\0", "(" * 5000, "-" * 200_000 + "1"])
def test_a_source_that_is_not_python_is_a_build_error(source: str) -> None:
    with pytest.raises(ModuleError) as refused:
        check_source(source, own_kernels=False)
    assert refused.value.outcome is Outcome.BUILD_ERROR


def test_a_huge_source_is_refused() -> None:
    with pytest.raises(ModuleError, match="limit"):
        check_source("#" * (MAX_SOURCE_CHARACTERS + 1), own_kernels=False)
