"""One product in lower precision is found in every operator, and float32 passes in whatever order it adds."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array, Numerics, Operator, Precision, Task, Tensor, Tolerance
from mctskernel.problems.torch_reference import in_numpy
from mctskernel.profiling.verify import Case, check_outputs, draw_verification

torch = pytest.importorskip("torch")
functional = torch.nn.functional

Rounding = Callable[[Any], Any]


def to_tf32(x: Any) -> Any:
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


PRECISIONS: dict[str, Rounding] = {
    "TF32": to_tf32,
    "TF32, truncated": lambda x: (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32),
    "bfloat16": lambda x: x.bfloat16().float(),
    "float16": lambda x: x.half().float(),
}


def attention(scores: Rounding, values: Rounding, q: Any, k: Any, v: Any) -> Any:
    weights = torch.softmax(scores(q) @ scores(k).transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
    return values(weights) @ values(v)


def averaged(r: Rounding, x: Any, w: Any, b: Any) -> Any:
    means = (r(x) @ r(w).T - b).mean(1, keepdim=True)
    return x + functional.gelu(torch.logsumexp(means, 1, keepdim=True))


def normalised(r: Rounding, x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return r(centred) * torch.rsqrt((r(centred) * r(centred)).mean(-1, keepdim=True) + 1e-5) * w


def keep(x: Any) -> Any:
    return x


SMALL = 128**-0.5
HEADS = "x 2,n,32 w 2,n,32 v 2,n,32 = 2,n,32"
Described = tuple[Callable[..., Any], str]
"""A function of a rounding and inputs, and the extents of these and of the result."""

OPERATORS: dict[str, Described] = {
    "matmul": (lambda r, x, w: r(x) @ r(w), "x n,n w n,n = n,n"),
    "linear, softmax": (lambda r, x, w: torch.softmax(r(x) @ r(w).T, 1), "x 9,n w 2048,n = 9,2048"),
    "linear, mean, logsumexp, residual": (averaged, "x 9,n w n,n b n = 9,n"),
    "convolution": (
        lambda r, x, w: functional.conv2d(r(x), r(w), padding=1),
        "x 2,8,16,n w 8,8,3,3 = 2,8,16,n",
    ),
    "transposed convolution": (
        lambda r, x, w: functional.conv_transpose2d(r(x), r(w), stride=2),
        "x 2,8,8,8 w 8,4,3,3 = 2,4,17,17",
    ),
    "attention's scores": (lambda r, x, w, v: attention(r, keep, x, w, v), HEADS),
    "attention's values": (lambda r, x, w, v: attention(keep, r, x, w, v), HEADS),
    "standardised": (
        lambda _, x, w: standardised(lambda each: each.mean(1, keepdim=True), x, w),
        "x 9,16 w 4096,16 = 9,4096",
    ),
    "clipped": (lambda _, x: clipped(lambda each: each.mean(1, keepdim=True), x), "x 9,4096 = 9,1"),
    "reduction": (lambda r, x: r(x).sum(1), "x 33,n = 33"),
    "normalisation": (normalised, "x 33,n w n = 33,n"),
    "chain": (lambda r, x, w: functional.gelu(r(x) * r(w)) + x, "x 33,n w 33,n = 33,n"),
}


def residual(r: Rounding, x: Any, w: Any, v: Any) -> Any:
    hidden = torch.relu(functional.conv2d(r(x), r(w), padding=1))
    return torch.relu(functional.conv2d(r(hidden), r(v), padding=1)) + x


def pooled(r: Rounding, x: Any, w: Any, b: Any) -> Any:
    hidden = functional.batch_norm(functional.conv2d(r(x), r(w), b), None, None, training=True)
    return functional.max_pool2d(torch.tanh(hidden), 2).mean((2, 3), keepdim=True)


def classified(r: Rounding, x: Any, w: Any, v: Any) -> Any:
    """The product after the convolution, in lower precision alone."""
    return functional.conv2d(x, w).mean((2, 3)) @ r(v)


CONVOLUTIONS: dict[str, Described] = {
    "convolution": OPERATORS["convolution"],
    "transposed convolution": OPERATORS["transposed convolution"],
    "residual": (residual, "x 2,8,16,n w 8,8,3,3 v 8,8,3,3 = 2,8,16,n"),
    "pooled": (pooled, "x 4,3,16,130 w 8,3,3,3 b 8 = 4,8,1,1"),
    "one channel": (lambda r, x, w: functional.conv1d(r(x), r(w)).amax(2), "x 64,4,n w 1,4,3 = 64,1"),
}
IN_TF32 = Numerics(tf32=frozenset({Operator.CONVOLUTION}))


def standardised(mean: Rounding, x: Any, w: Any) -> Any:
    hidden = torch.sigmoid(x @ w.T / 16)
    centred = hidden - mean(hidden)
    return centred * torch.rsqrt(mean(centred * centred) + 1e-5)


def clipped(mean: Rounding, x: Any) -> Any:
    hidden = functional.hardswish(x - 3)
    return mean(functional.layer_norm(hidden, (4096,)) * 5.3 + 5.2)


def mean_in_sequence(x: Any) -> Any:
    return torch.from_numpy(np.cumsum(x.numpy(), 1, dtype=np.float32)[:, -1:]) / x.shape[1]


QUICK = ("matmul", "linear, mean, logsumexp, residual", "normalisation")
LOCKED = Numerics()


def task_of(name: str, *, uniform: bool, numerics: Numerics = LOCKED) -> Task:
    function, described = {**OPERATORS, **CONVOLUTIONS}[name]
    words = described.replace("=", "out").split()
    extents = {each: tuple(words[2 * at + 1].split(",")) for at, each in enumerate(words[::2])}
    output = extents.pop("out")

    def drawn(each: str) -> dict[str, Any]:
        reach = SMALL if each in "wvb" else 1.0
        return {"distribution": "uniform", "low": 0.0 if each == "x" else -reach, "high": reach}

    return Task(
        name=name,
        folder=Path("operator"),
        inputs=tuple(
            Tensor(each, "float32", shape, **(drawn(each) if uniform else {}))
            for each, shape in extents.items()
        ),
        outputs=(Tensor("out", "float32", output),),
        verify_shapes=({"n": 5}, {"n": 128}),
        tolerance=Tolerance(ratio=64.0),
        numerics=numerics,
        starting_kernel=Kernel(""),
        reference=reference_of(lambda *given: function(keep, *given), tuple(extents)),
    )


def allowed(name: str, *, uniform: bool) -> Task:
    return task_of(name, uniform=uniform, numerics=IN_TF32)


def reference_of(function: Callable[..., Any], inputs: tuple[str, ...]) -> Callable[..., object]:
    def reference(**arrays: Array) -> object:
        return in_numpy(function, *arrays.values())

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    reference.takes_tensors = True  # type: ignore[attr-defined] # so that its own sums are rounded too
    reference.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what a task reads
        [inspect.Parameter(each, kind) for each in inputs]
    )
    return reference


def result_of(name: str, case: Case, rounding: Rounding) -> Array:
    given = [torch.from_numpy(each) for each in case.inputs.values()]
    found: Array = {**OPERATORS, **CONVOLUTIONS}[name][0](rounding, *given).numpy()
    return found


def passes(name: str, case: Case, rounding: Rounding) -> bool:
    return check_outputs(case, {"out": result_of(name, case, rounding)}).passed


@pytest.mark.parametrize("uniform", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow)
        for each in OPERATORS
        if each not in {"standardised", "clipped"}
    ],
)
def test_lower_precision_is_found_at_an_aligned_shape(name: str, uniform: bool) -> None:
    cases = draw_verification(task_of(name, uniform=uniform), 0)
    assert all(passes(name, case, keep) for case in cases)
    for precision, rounding in PRECISIONS.items():
        found = [case.label for case in cases if case.shape["n"] == 128 and not passes(name, case, rounding)]
        assert found, precision


@pytest.mark.parametrize(
    ("name", "function"),
    [("standardised", standardised), pytest.param("clipped", clipped, marks=pytest.mark.slow)],
)
def test_sums_in_any_order_pass_within_a_reference_too(name: str, function: Callable[..., Any]) -> None:
    for case in draw_verification(task_of(name, uniform=False), 0):
        given = [torch.from_numpy(each) for each in case.inputs.values()]
        check = check_outputs(case, {"out": function(mean_in_sequence, *given).numpy()})
        assert check.passed, check.message


@pytest.mark.parametrize("uniform", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        "convolution",
        *(pytest.param(each, marks=pytest.mark.slow) for each in CONVOLUTIONS if each != "convolution"),
    ],
)
def test_a_convolution_passes_in_tf32_where_pytorch_computes_it_so_and_in_nothing_less(
    name: str, uniform: bool
) -> None:
    cases = [case for seed in range(2) for case in draw_verification(allowed(name, uniform=uniform), seed)]
    for precision in ("TF32", "TF32, truncated"):
        wrong = [case.label for case in cases if not passes(name, case, PRECISIONS[precision])]
        assert not wrong, precision
    assert all(passes(name, case, keep) for case in cases)
    for precision in ("bfloat16", "float16"):
        first = cases[: len(cases) // 2]
        assert not all(passes(name, case, PRECISIONS[precision]) for case in first), precision


def test_a_product_beside_a_convolution_is_refused_in_tf32_with_the_policy() -> None:
    CONVOLUTIONS["classified"] = classified, "x 5,8,6,n w 16,8,3,3 v 16,n = 5,n"
    checks = [
        check_outputs(case, {"out": result_of("classified", case, to_tf32)})
        for case in draw_verification(allowed("classified", uniform=False), 0)
    ]
    refused = [check.message for check in checks if not check.passed]
    assert any(
        "TF32, bfloat16 or float16 numbers are too imprecise for float32 inputs, but convolutions may be computed in "
        "TF32, as PyTorch does." in message
        for message in refused
    )


def test_a_convolution_is_exact_where_pytorch_does_not_use_tf32() -> None:
    cases = draw_verification(task_of("convolution", uniform=False), 0)
    assert not all(passes("convolution", case, to_tf32) for case in cases)

    def depthwise(x: Any, w: Any) -> Any:
        return functional.conv2d(x, w[:, :1], padding=1, groups=8)

    task = replace(allowed("convolution", uniform=False), reference=reference_of(depthwise, ("x", "w")))
    found = []
    for case in draw_verification(task, 0):
        x, w = (to_tf32(torch.from_numpy(case.inputs[each])) for each in ("x", "w"))
        found.append(check_outputs(case, {"out": depthwise(x, w).numpy()}).passed)
    assert not all(found)


def test_relaxed_precision_leaves_out_the_numbers_that_find_less() -> None:
    task = replace(
        task_of("matmul", uniform=True),
        precision=Precision.RELAXED,
        tolerance=Tolerance(1e-2, 1e-2, math.inf),
    )
    assert all(passes("matmul", case, to_tf32) for case in draw_verification(task, 0))
