"""Rules whose patterns only some of the built-in tasks have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mctskernel.tasks.builtin
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.model_device import ModelDevice

Propose = Callable[..., dict[str, str]]

FOLDER = Path(mctskernel.tasks.builtin.__path__[0])


@pytest.fixture(scope="module")
def attention() -> Task:
    return load_task(FOLDER / "attention", Language.TRITON)


@pytest.fixture(scope="module")
def histogram() -> Task:
    return load_task(FOLDER / "histogram", Language.TRITON)


@pytest.mark.slow
def test_attention_stops_at_the_diagonal(propose: Propose, attention: Task) -> None:
    (bounded,) = propose("triton-causal-bound", attention.starting_kernel.source, task=attention).values()
    assert "range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N)" in bounded
    assert ModelDevice(attention).evaluate(Kernel(bounded, Language.TRITON)).ok
    assert propose("triton-causal-bound", bounded, task=attention) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("across <= row", "across <= row + 1"),  # one key beyond the diagonal
        ('score, float("-inf"))', "score, -1e9)"),  # hidden keys that count a little
        (
            "mixed * shrink + tl.dot(",
            "mixed * shrink + 1.0 + tl.dot(",
        ),  # something for each key, hidden or not
        ("tl.exp(score - larger)", "tl.exp(score - larger) + 1.0"),  # weights of hidden keys that aren't zero
        ("largest = larger\n", "largest = larger\n        scale += 1.0\n"),  # something else is carried
        ("tl.store(out", "row += down\n    tl.store(out"),  # the last block is used after the loop
    ],
)
def test_a_mask_that_hides_too_little_bounds_nothing(
    propose: Propose, attention: Task, old: str, new: str
) -> None:
    source = attention.starting_kernel.source
    assert old in source
    assert propose("triton-causal-bound", source.replace(old, new), task=attention) == {}


@pytest.mark.slow
def test_values_are_counted_in_each_program_first(propose: Propose, histogram: Task) -> None:
    (counted,) = propose("triton-counted-first", histogram.starting_kernel.source, task=histogram).values()
    assert "tl.histogram(value, 256, mask=i < n)" in counted
    assert "BLOCK = 2048" in counted
    device = ModelDevice(histogram)
    assert device.evaluate(Kernel(counted, Language.TRITON)).ok
    assert all(check.passed for check in device.final_check(Kernel(counted, Language.TRITON)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".to(tl.int32)", ".to(tl.int32) + 1"),  # 256 has no bin
        ("value, 1, mask", "value, 2, mask"),
        ("tl.load(values + i", "tl.load(counts + i"),  # not from bytes
    ],
)
def test_other_additions_stay(propose: Propose, histogram: Task, old: str, new: str) -> None:
    source = histogram.starting_kernel.source
    assert old in source
    assert propose("triton-counted-first", source.replace(old, new), task=histogram) == {}
