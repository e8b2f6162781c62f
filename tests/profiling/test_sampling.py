"""Samples of large tensors: what is wrong in a sampled band is seen, and bands stay aligned with the truth."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Array, Shape, Task, Tensor
from mctskernel.core.task_file import load_task
from mctskernel.profiling import sampling
from mctskernel.profiling.sampling import Sample, draw_sample
from mctskernel.profiling.verify import check_outputs

TASKS = Path(__file__).parents[2] / "mctskernel" / "tasks" / "builtin"


def fetched(sample: Sample, tensor: Tensor, shape: Shape, array: Array) -> Array:
    """What a GPU process would hand back of a tensor that holds `array`."""
    data, parts = np.ascontiguousarray(array).reshape(-1).view(np.uint8), []
    for part in sample.parts(tensor, shape):
        rows = [data[part.start + i * part.pitch :][: part.width] for i in range(part.rows)]
        parts.append(np.concatenate(rows).view(numpy_dtype(tensor.dtype)).reshape(part.extents))
    return sample.joined(tensor, parts)


def passes(task: Task, sample: Sample, shape: Shape, outputs: Mapping[str, Array]) -> bool:
    return check_outputs(
        sample.case, {each.name: fetched(sample, each, shape, outputs[each.name]) for each in task.outputs}
    ).passed


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ELEMENTS", 64)


@pytest.mark.parametrize("name", ["softmax", "matmul", "sum"])
def test_a_sample_shows_a_wrong_end_and_passes_what_is_right(name: str) -> None:
    task = load_task(TASKS / name)
    shape = max(task.verify_shapes, key=task.compulsory_bytes)
    inputs, sample = draw_sample(task, shape, 5, np.random.default_rng(1))
    expected = task.expected(inputs, shape)
    right = {name: array.astype(np.float32, order="C") for name, array in expected.items()}
    assert passes(task, sample, shape, right)
    for where in (0, -1):
        wrong = {name: array.copy() for name, array in right.items()}
        next(iter(wrong.values())).reshape(-1)[where] += 1e3
        assert not passes(task, sample, shape, wrong)


def test_the_reference_is_asked_about_a_slice_alone(write_task: Callable[..., Path]) -> None:
    asked: list[int] = []

    def reference(x: Array, n: int) -> Array:
        asked.append(n)
        return 2 * x

    task = replace(load_task(write_task()), independent="n", reference=reference)
    inputs, sample = draw_sample(task, {"n": 4096}, 0, np.random.default_rng(0))
    assert len(inputs["x"]) == 4096
    assert set(asked) == {len(sample.case.expected["out"])}
    assert max(asked) <= 64


def test_inputs_that_a_task_makes_are_made_once_for_all_tensors() -> None:
    made: list[int] = []

    def make_inputs(rng: np.random.Generator, n: int) -> Mapping[str, Array]:
        made.append(n)
        return {name: rng.random(n, dtype=np.float32) for name in ("x", "y")}

    task = Task(
        name="sum",
        inputs=(Tensor("x", "float32", ("n",)), Tensor("y", "float32", ("n",))),
        outputs=(Tensor("out", "float32", ("n",)),),
        starting_kernel=Kernel(""),
        reference=lambda x, y: x + y,
        make_inputs=make_inputs,
    )
    inputs, sample = draw_sample(task, {"n": 100}, 3, np.random.default_rng(0))
    assert sample.case.noise is not None
    for number in (1, 2):
        again = sample.case.noise.inputs()
        assert len(made) == 1 + number
        assert all(np.array_equal(again[name], array) for name, array in inputs.items())


def twice(shape: tuple[str, ...], independent: str) -> Task:
    """A task that doubles a tensor."""
    return Task(
        name="twice",
        inputs=(Tensor("x", "float32", shape),),
        outputs=(Tensor("out", "float32", shape),),
        starting_kernel=Kernel(""),
        independent=independent,
        reference=lambda x: 2 * x,
    )


@pytest.mark.parametrize(
    ("independent", "shape"), [("a", "abc"), ("b", "abc"), ("", "abc"), ("c", "abcd"), ("a", "ab")]
)
def test_of_large_slices_a_part_is_compared_whole_rows_of_it(independent: str, shape: str) -> None:
    sizes, task, found = {"a": 6, "b": 10, "c": 16, "d": 9}, twice(tuple(shape), independent), False
    for seed in range(8):
        inputs, sample = draw_sample(task, sizes, 0, np.random.default_rng(seed))
        assert passes(task, sample, sizes, {"out": 2 * inputs["x"]})
        compared = sample.case.expected["out"]
        assert compared.size <= 10 * sampling.ELEMENTS
        assert independent == shape[-1] or compared.shape[-1] == sizes[shape[-1]]
        wrong = 2 * inputs["x"]
        wrong[(-1,) * wrong.ndim] = 0
        found |= not passes(task, sample, sizes, {"out": wrong})
    assert found


@pytest.mark.parametrize("independent", ["", "images"])
def test_no_slice_is_known_to_be_left_out(independent: str) -> None:
    shape = {"images": 9, "planes": 7, "n": 640}
    task = twice(tuple(shape), independent)
    left_out = [(image, slice(None)) for image in range(9)] + [(slice(None), plane) for plane in range(7)]
    found = [False] * len(left_out)
    for seed in range(40):
        inputs, sample = draw_sample(task, shape, seed, np.random.default_rng(seed))
        assert passes(task, sample, shape, {"out": 2 * inputs["x"]})
        for number, where in enumerate(left_out):
            wrong = 2 * inputs["x"]
            wrong[where] = 0
            found[number] |= not passes(task, sample, shape, {"out": wrong})
    assert all(found)
