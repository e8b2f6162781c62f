"""Triton kernels emulated against numpy, with planted bugs, and judged by the `model` device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from tests.conftest import WriteTask
from tests.profiling.triton_programs import (
    HISTOGRAM,
    LOCAL_HISTOGRAM,
    MATMUL,
    Array,
    emulate,
    module,
)

pytestmark = pytest.mark.slow

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def normal(seed: int, *extents: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(extents).astype(dtype)


def run(
    source: str, arrays: Mapping[str, Array], names: Mapping[str, Number], architecture: str = "sm_90"
) -> Mapping[str, Array]:
    done = emulate(source, arrays, names, architecture)
    assert done.findings == ()
    return done.arrays


@pytest.mark.parametrize(
    ("dtype", "tile", "stages", "architecture"),
    [
        (np.float32, (32, 32, 16), 3, "sm_90"),
        (np.float16, (16, 32, 32), 1, "sm_90"),
        (BFLOAT16, (32, 32, 32), 3, "sm_90"),
        (BFLOAT16, (64, 64, 32), 3, "sm_80"),  # for sm_90 this is wgmma
        (np.int8, (32, 32, 32), 2, "sm_90"),
    ],
)
def test_matmul(dtype: Any, tile: tuple[int, int, int], stages: int, architecture: str) -> None:
    """Extents that no tile divides, so that masks matter; float32 without TF32."""
    m, n, k = 65, 48, 70
    if dtype is np.int8:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-99, 99, extents, dtype=np.int8) for extents in ((m, k), (k, n)))
        body, out = (
            MATMUL.replace("tl.float32", "tl.int32").replace(
                'tl.dot(x, y, total, input_precision="ieee")', "total + tl.dot(x, y)"
            ),
            np.int32,
        )
    else:
        a, b = normal(0, m, k, dtype=dtype), normal(1, k, n, dtype=dtype)
        body, out = MATMUL, np.float32
    source = module(
        body,
        "matmul",
        ["a", "b", "c", "m", "n", "k"],
        grid=[f"ceil_div(m, {tile[0]})", f"ceil_div(n, {tile[1]})"],
        constexprs=dict(zip(("BM", "BN", "BK"), tile, strict=True)),
        num_stages=stages,
    )
    arrays = {"a": a, "b": b, "c": np.full((m, n), 77, out)}
    found = run(source, arrays, {"m": m, "n": n, "k": k}, architecture)
    np.testing.assert_allclose(found["c"], a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("body", "constexprs"), [(HISTOGRAM, {}), (LOCAL_HISTOGRAM, {"BINS": 16})])
def test_histogram(body: str, constexprs: dict[str, Number | str]) -> None:
    x = np.random.default_rng(0).integers(0, 16, 1000).astype(np.int32)
    source = module(body, "histogram", ["x", "out", "n"], grid=["4"], constexprs={"B": 256, **constexprs})
    found = run(source, {"x": x, "out": np.zeros(16, np.int32)}, {"n": 1000})
    np.testing.assert_array_equal(found["out"], np.bincount(x, minlength=16))


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
    ("v = tl.sin(v * 1e6)", lambda x: np.sin((x * np.float32(1e6)).astype(np.float64))),
    ("v = tl.clamp(v, -0.5, 0.5)", lambda x: np.clip(x, -0.5, 0.5)),
    ("v = tl.sigmoid(v) + tl.rsqrt(v * v + 1)", lambda x: 1 / (1 + np.exp(-x)) + (x * x + 1) ** -0.5),
    ("v = tl.sort(v, descending=True)", lambda x: np.sort(x)[::-1]),
    ("v = v * 0 + tl.argmax(v, 0)", lambda x: x * 0 + np.argmax(x)),
    ("v = tl.gather(v, (tl.arange(0, B) + 5) % B, 0)", lambda x: np.roll(x, -5)),
    ("v = tl.reshape(tl.trans(tl.reshape(v, (16, 16))), (256,))", lambda x: x.reshape(16, 16).T.reshape(-1)),
    ("v = v.to(tl.float8e5).to(tl.float32)", lambda x: x.astype(ml_dtypes.float8_e5m2).astype(float)),
    ("v = v.to(tl.float8e4nv).to(tl.float32)", lambda x: x.astype(ml_dtypes.float8_e4m3fn).astype(float)),
    ("for j in tl.range(0, n, 64, num_stages=2):\n        v += tl.load(x + j)", lambda x: x + x[::64].sum()),
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
    ("out_of_bounds", "tl.load(x + i, mask", "tl.load(x + i - 1, mask"),
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


TWICE = """
BLOCK = 64


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
"""
TWICE_MODULE = module(
    TWICE, "twice", ["x", "out", "n"], grid=["ceil_div(n, BLOCK)"], constexprs={"BLOCK": "BLOCK"}
)

Judge = Callable[[str], Evaluation]


@pytest.fixture
def judge(write_task: WriteTask) -> Judge:
    folder = write_task(kernel=None)
    (folder / "kernel.py").write_text(TWICE_MODULE)
    device = ModelDevice(load_task(folder))
    return lambda source: device.evaluate(Kernel(source, Language.TRITON))


def test_the_model_verifies_and_prices_a_kernel(judge: Judge) -> None:
    evaluation = judge(TWICE_MODULE)
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
        ("num_warps = 4", "num_warps = 3", Outcome.LAUNCH_ERROR, "power of two"),
        ("'out', 'n'", "'out'", Outcome.BUILD_ERROR, "has 2 arguments; the kernel has 3"),
        ("tl.store(out", "tl.store(x", Outcome.WRONG_RESULT, "x"),
    ],
)
def test_the_model_says_what_is_wrong(
    judge: Judge, right: str, wrong: str, outcome: Outcome, message: str
) -> None:
    assert right in TWICE_MODULE
    evaluation = judge(TWICE_MODULE.replace(right, wrong))
    assert evaluation.outcome is outcome, evaluation.message
    assert message in evaluation.message


MATMUL_TOML = """\
name = "matmul"

[[inputs]]
name = "a"
dtype = "bfloat16"
shape = ["m", "k"]

[[inputs]]
name = "b"
dtype = "bfloat16"
shape = ["k", "n"]

[[outputs]]
name = "c"
dtype = "float32"
shape = ["m", "n"]

[shapes]
search = [{ m = 256, n = 256, k = 256 }]
verify = [{ m = 64, n = 64, k = 64 }, { m = 65, n = 33, k = 70 }]
"""


def matmul(depth: int, stages: int) -> str:
    return module(
        MATMUL,
        "matmul",
        ["a", "b", "c", "m", "n", "k"],
        grid=["ceil_div(m, 64)", "ceil_div(n, 64)"],
        constexprs={"BM": 64, "BN": 64, "BK": depth},
        num_stages=stages,
    )


@pytest.fixture
def multiplier(write_task: WriteTask) -> ModelDevice:
    folder = write_task(MATMUL_TOML, "def reference(a, b):\n    return a @ b\n", None)
    (folder / "kernel.py").write_text(matmul(32, 3))
    return ModelDevice(load_task(folder))


def test_what_is_wgmma_on_the_gpu_is_judged_by_an_older_lowering_and_says_so(multiplier: ModelDevice) -> None:
    right = matmul(32, 3)
    wrong = right.replace("total = tl.dot(x, y, total", "total = tl.dot(x, y + y, total")
    for source, outcome in ((right, Outcome.OK), (wrong, Outcome.WRONG_RESULT)):
        evaluation = multiplier.evaluate(Kernel(source, Language.TRITON))
        assert evaluation.outcome is outcome, evaluation.message
        assert any("sm_80" in flag for flag in evaluation.flags)
    assert all(check.passed for check in multiplier.final_check(Kernel(right, Language.TRITON)))
