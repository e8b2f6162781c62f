"""Rules for the precision of products and the reuse of loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task, Tolerance
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

from .programs import SOFTMAX

Propose = Callable[..., dict[str, str]]
Verify = Callable[[str], None]

FOLDER = Path(mctskernel.tasks.builtin.__path__[0])


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


def test_the_tolerance_says_how_precisely_to_multiply(
    propose: Propose, matmul: Task, device: ModelDevice
) -> None:
    source = matmul.starting_kernel.source
    (precise,) = propose("triton-dot-precision", source, task=matmul).values()
    assert 'input_precision="tf32x3"' in precise
    check(device, precise)
    lax = dataclasses.replace(matmul, tolerance=Tolerance(relative=1e-2, absolute=1e-2, ratio=1e6))
    proposed = propose("triton-dot-precision", source, task=lax)
    assert list(proposed) == ["set input_precision=tf32 of tl.dot", "set input_precision=tf32x3 of tl.dot"]
    check(ModelDevice(lax), proposed["set input_precision=tf32 of tl.dot"])
    assert not device.evaluate(Kernel(proposed["set input_precision=tf32 of tl.dot"], Language.TRITON)).ok
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
