"""Rules for tiles that are multiplied: sums in parts, cheaper products; and hints about what is read again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

from .programs import SOFTMAX

Propose = Callable[..., dict[str, str]]
Verify = Callable[[str], None]

FOLDER = Path(mctskernel.tasks.__path__[0])


@pytest.fixture(scope="module")
def matmul() -> Task:
    """The built-in task, timed at a shape with few tiles and many products for each."""
    whole = load_task(FOLDER / "matmul", Language.TRITON)
    return dataclasses.replace(whole, search_shapes=({"M": 40, "N": 70, "K": 300},))


@pytest.fixture(scope="module")
def device(matmul: Task) -> ModelDevice:
    return ModelDevice(matmul)


def check(device: ModelDevice, text: str) -> None:
    kernel = Kernel(text, Language.TRITON)
    evaluation = device.evaluate(kernel)
    assert evaluation.ok, f"{evaluation.outcome}: {evaluation.message}\n{text}"
    failed = [each for each in device.final_check(kernel) if not each.passed]
    assert not failed, f"{failed[0]}\n{text}"


def test_sums_in_parts(propose: Propose, matmul: Task, device: ModelDevice) -> None:
    proposed = propose("triton-split-sums", matmul.starting_kernel.source, task=matmul)
    assert [title.split(": ")[1] for title in proposed] == [f"{n} programs for each tile" for n in (4, 2, 8)]
    split = next(iter(proposed.values()))
    assert 'shape = ["SPLITS", "M * N"]' in split
    check(device, split)
    assert propose("triton-split-sums", split, task=matmul) == {}
    more = propose("triton-grid-size", split, task=matmul)["SPLITS 4 -> 8"]
    check(device, more)


def test_sums_of_16_bit_products_are_added_in_float32(propose: Propose) -> None:
    whole = load_task(FOLDER / "matmul_bf16", Language.TRITON)
    task = dataclasses.replace(whole, search_shapes=({"M": 40, "N": 70, "K": 300},))
    source = task.starting_kernel.source.replace(
        "col, product, mask", "col, product.to(c.dtype.element_ty), mask"
    )
    assert source != task.starting_kernel.source
    split = next(iter(propose("triton-split-sums", source, task=task).values()))
    assert 'dtype = "float32"' in split
    assert "col, product, mask" in split
    check(ModelDevice(task), split)


def test_a_grid_that_fills_the_device_is_not_split(propose: Propose) -> None:
    large = load_task(FOLDER / "matmul", Language.TRITON)
    assert propose("triton-split-sums", large.starting_kernel.source, task=large) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.dot(left, right, product,", "tl.dot(left, right, product * 0.5,"),
        ("tl.dot(left, right, product,", "product * tl.dot(left, right,"),
        ("range(0, K, BLOCK_K)", "range(BLOCK_K, K, BLOCK_K)"),
        ("range(0, K, BLOCK_K)", "tl.range(0, K, BLOCK_K)"),
        ("col, product, mask", "col, product + 1.0, mask"),
        ("col, product, mask", "col, tl.maximum(product, 0.0), mask"),
        ("BLOCK_N], tl.float32)", "BLOCK_N], tl.float16)"),
        ("tl.zeros([BLOCK_M, BLOCK_N],", "tl.full([BLOCK_M, BLOCK_N], 1.0,"),
        ("    tl.store(c +", "    tl.store(c, 0.0)\n    tl.store(c +"),
        ("        left = tl.load(", "        row += 0\n        left = tl.load("),
        ("        left = tl.load(", "        row = row + 0\n        left = tl.load("),
        ('"a", "b", "c"', '"c", "b", "c"'),
        ("row * N + col, product", "row * N + start, product"),
        ("tl.program_id(1) * BLOCK_M", "tl.program_id(1) * BLOCK_M + 0 * tl.program_id(2)"),
    ],
)
def test_other_sums_are_not_split(propose: Propose, matmul: Task, old: str, new: str) -> None:
    source = matmul.starting_kernel.source
    assert old in source
    assert propose("triton-split-sums", source.replace(old, new), task=matmul) == {}


def test_the_tolerance_says_how_precisely_to_multiply(
    propose: Propose, matmul: Task, device: ModelDevice
) -> None:
    source = matmul.starting_kernel.source
    (precise,) = propose("triton-dot-precision", source, task=matmul).values()
    assert 'input_precision="tf32x3"' in precise
    check(device, precise)
    lax = dataclasses.replace(matmul, tolerance=Tolerance(relative=1e-2, absolute=1e-2, ratio=1e6))
    proposed = propose("triton-dot-precision", source, task=lax)
    assert list(proposed) == ["matmul: multiply in tf32", "matmul: multiply in tf32x3"]
    check(ModelDevice(lax), proposed["matmul: multiply in tf32"])
    assert not device.evaluate(Kernel(proposed["matmul: multiply in tf32"], Language.TRITON)).ok
    strict = dataclasses.replace(matmul, tolerance=Tolerance(relative=1e-7))
    assert propose("triton-dot-precision", source, task=strict) == {}


def test_loads_say_what_is_read_again(
    propose: Propose, verify: Verify, matmul: Task, device: ModelDevice
) -> None:
    (softmax,) = propose("triton-eviction", SOFTMAX).values()
    policies = [
        line.split('eviction_policy="')[1].split('"')[0] for line in softmax.splitlines() if "evict" in line
    ]
    assert policies == ["evict_last", "evict_last", "evict_first"]
    verify(softmax)
    assert propose("triton-eviction", softmax) == {}
    (tiles,) = propose("triton-eviction", matmul.starting_kernel.source, task=matmul).values()
    assert tiles.count('eviction_policy="evict_last"') == 2, (
        "programs of a row or a column share what they read"
    )
    check(device, tiles)
