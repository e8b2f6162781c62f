"""Triton kernels emulated against numpy, with planted bugs, and judged by the `model` device."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks.builtin import find_task
from tests.conftest import TRITON_KERNEL, WriteTask
from tests.profiling.triton_programs import Array, emulate, module

pytestmark = pytest.mark.slow


def normal(seed: int, *extents: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(extents).astype(dtype)


def run(
    source: str, arrays: Mapping[str, Array], names: Mapping[str, Number], architecture: str = "sm_90"
) -> Mapping[str, Array]:
    done = emulate(source, arrays, names, architecture)
    assert done.findings == ()
    return done.arrays


ONE = """
@triton.jit
def one(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    STATEMENT
    tl.store(out + i, v, mask=i < n)
"""

OPERATIONS: list[tuple[str, Callable[[Array], Array]]] = [
    ("v = tl.exp(v) + tl.log(tl.abs(v) + 1)", lambda x: np.exp(x) + np.log(np.abs(x) + 1)),
    ("v = tl.sort(v, descending=True)", lambda x: np.sort(x)[::-1]),
    ("v = tl.gather(v, (tl.arange(0, B) + 5) % B, 0)", lambda x: np.roll(x, -5)),
    ("v = tl.reshape(tl.trans(tl.reshape(v, (16, 16))), (256,))", lambda x: x.reshape(16, 16).T.reshape(-1)),
    ("v = v.to(tl.float8e5).to(tl.float32)", lambda x: x.astype(ml_dtypes.float8_e5m2).astype(float)),
    (
        "q = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))\n"
        "    v += tl.load(q, boundary_check=(0,), padding_option='zero')",
        lambda x: 2 * x,
    ),
]


@pytest.mark.parametrize(("statement", "reference"), OPERATIONS, ids=[text for text, _ in OPERATIONS])
def test_operations(statement: str, reference: Callable[[Array], Array]) -> None:
    x = normal(3, 256)
    source = module(ONE.replace("STATEMENT", statement), "one", ["x", "out", "n"], constexprs={"B": 256})
    found = run(source, {"x": x, "out": np.zeros_like(x)}, {"n": 256})
    np.testing.assert_allclose(found["out"], reference(x), rtol=1e-5, atol=1e-5)


BUGS = [
    ("out_of_bounds", "v = tl.load(x + i, mask=i < n, other=0.0)", "v = tl.load(x + i)"),
    ("out_of_bounds", "tl.store(out + i, v, mask=i < n)", "tl.store(out + i, v)"),
    ("race", "tl.store(out + i, v", "tl.store(out + i % 7, v"),
    ("misaligned", "v = tl.load(x + i,", "v = tl.load(tl.multiple_of(x + 1 + i, 16),"),
]


@pytest.mark.parametrize(("kind", "right", "wrong"), BUGS)
def test_planted_bugs_are_found_at_their_line(kind: str, right: str, wrong: str) -> None:
    good = module(ONE.replace("STATEMENT", "pass"), "one", ["x", "out", "n"], constexprs={"B": 512})
    arrays = {"x": normal(0, 320), "out": np.zeros(320, np.float32)}
    assert emulate(good, arrays, {"n": 320}).findings == ()
    bad = good.replace(right, wrong)
    line = 1 + bad[: bad.index(wrong)].count("\n")
    found = emulate(bad, arrays, {"n": 320}).findings
    assert (kind, line) in {(each.kind, each.line) for each in found}


Judge = Callable[[str], Evaluation]


@pytest.fixture
def judge(write_task: WriteTask) -> Judge:
    folder = write_task(kernel=None)
    (folder / "kernel.py").write_text(TRITON_KERNEL)
    device = ModelDevice(load_task(folder))
    return lambda source: device.evaluate(Kernel(source, Language.TRITON))


def test_the_model_verifies_and_prices_a_kernel(judge: Judge) -> None:
    evaluation = judge(TRITON_KERNEL)
    assert evaluation.outcome is Outcome.OK, evaluation.message
    assert evaluation.source is Source.MODELLED
    assert [timing.shape for timing in evaluation.timings] == ["n=4096"]
    assert evaluation.timings[0].seconds > 1e-6
    assert evaluation.diagnosis is not None
    assert evaluation.resources[0].kernel == "twice"
    assert not any("sm_80" in flag for flag in evaluation.flags)


@pytest.mark.parametrize(
    ("right", "wrong", "outcome", "message"),
    [
        ("mask=i < n), mask=i < n", "mask=i < n)", Outcome.CRASH, "out"),
        ("2 *", "3 *", Outcome.WRONG_RESULT, ""),
        ("BLOCK = 64", "import os", Outcome.REJECTED, "Line 13: 'import os' is not allowed"),
        ("2 *", "2 * *", Outcome.BUILD_ERROR, "Line 19: "),
        ("BLOCK = 64", "BLOCK = 100", Outcome.BUILD_ERROR, "Line 18: arange's range must be a power of 2."),
        ("BLOCK = 64", "BLOCK = 2097152", Outcome.BUILD_ERROR, "Line 18: "),
        ("num_warps = 1", "num_warps = 3", Outcome.LAUNCH_ERROR, "power of two"),
        ('"out", "n"', '"out"', Outcome.BUILD_ERROR, "has 2 arguments; the kernel has 3"),
        ("tl.store(out", "tl.store(x", Outcome.WRONG_RESULT, "x"),
    ],
)
def test_the_model_says_what_is_wrong(
    judge: Judge, right: str, wrong: str, outcome: Outcome, message: str
) -> None:
    assert right in TRITON_KERNEL
    evaluation = judge(TRITON_KERNEL.replace(right, wrong))
    assert evaluation.outcome is outcome, evaluation.message
    assert message in evaluation.message


def test_what_is_wgmma_on_the_gpu_is_judged_by_an_older_lowering_and_says_so() -> None:
    shapes = ({"M": 64, "N": 64, "K": 64}, {"M": 65, "N": 33, "K": 70})
    task = load_task(find_task("matmul_bf16"), Language.TRITON)
    device = ModelDevice(replace(task, search_shapes=shapes[:1], verify_shapes=shapes))
    right = re.sub(r"(?m)^(BLOCK_[MN] = )16", r"\g<1>64", task.starting_kernel.source)
    right = right.replace("BLOCK_K = 16", "BLOCK_K = 32").replace("num_stages = 1", "num_stages = 3")
    wrong = right.replace("tl.dot(left, right,", "tl.dot(left, right + right,")
    for source, outcome in ((right, Outcome.OK), (wrong, Outcome.WRONG_RESULT)):
        evaluation = device.evaluate(Kernel(source, Language.TRITON))
        assert evaluation.outcome is outcome, evaluation.message
        assert any("sm_80" in flag for flag in evaluation.flags)
