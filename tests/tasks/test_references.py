"""The references of the built-in tasks agree with their formulas written out, and hold for a part of a task too."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from mctskernel.core.task import Array
from mctskernel.core.task_file import load_task
from mctskernel.tasks import builtin_tasks

Inputs = Mapping[str, Array]
TASKS = {name: load_task(folder) for name, folder in builtin_tasks().items()}


def softmax(inputs: Inputs) -> list[list[float]]:
    exponentials = [[math.exp(value) for value in row] for row in inputs["x"]]
    return [[value / math.fsum(row) for value in row] for row in exponentials]


def layernorm(inputs: Inputs) -> list[list[float]]:
    rows = []
    for row in inputs["x"].tolist():
        mean = math.fsum(row) / len(row)
        # The variance as the mean of the squares less the square of the mean.
        deviation = math.sqrt(math.fsum(v * v for v in row) / len(row) - mean * mean + 1e-5)
        rows.append(
            [
                (value - mean) / deviation * weight + bias
                for value, weight, bias in zip(row, inputs["weight"], inputs["bias"], strict=True)
            ]
        )
    return rows


def rmsnorm(inputs: Inputs) -> list[list[float]]:
    rows = []
    for row in inputs["x"].tolist():
        root = math.sqrt(math.fsum(value * value for value in row) / len(row) + 1e-5)
        rows.append([value / root * weight for value, weight in zip(row, inputs["weight"], strict=True)])
    return rows


def cumsum(inputs: Inputs) -> list[list[float]]:
    return [[math.fsum(row[: i + 1]) for i in range(len(row))] for row in inputs["x"].tolist()]


def cross_entropy(inputs: Inputs) -> list[float]:
    return [
        math.log(math.fsum(math.exp(value) for value in row)) - row[target]
        for row, target in zip(inputs["logits"].tolist(), inputs["targets"].tolist(), strict=True)
    ]


def bias_gelu(inputs: Inputs) -> list[list[float]]:
    """By the logistic function: tanh(y) = 2 / (1 + exp(-2 y)) - 1."""
    cubic = math.sqrt(8 / math.pi)
    return [
        [
            (y := value + bias) / (1 + math.exp(-cubic * (y + 0.044715 * y**3)))
            for value, bias in zip(row, inputs["bias"].tolist(), strict=True)
        ]
        for row in inputs["x"].tolist()
    ]


def matmul(inputs: Inputs) -> list[list[float]]:
    columns = inputs["b"].T.tolist()
    return [
        [math.fsum(x * y for x, y in zip(row, column, strict=True)) for column in columns]
        for row in inputs["a"].tolist()
    ]


def int4_matmul(inputs: Inputs) -> list[list[float]]:
    group = 2 * inputs["packed"].shape[1] // inputs["scales"].shape[1]
    columns = [
        [((row[k // 2] >> 4 * (k % 2)) % 16 - 8) * scales[k // group] for k in range(2 * len(row))]
        for row, scales in zip(inputs["packed"].tolist(), inputs["scales"].tolist(), strict=True)
    ]
    return [
        [math.fsum(x * y for x, y in zip(row, column, strict=True)) for column in columns]
        for row in inputs["x"].tolist()
    ]


def conv3x3(inputs: Inputs) -> list[list[list[list[float]]]]:
    x, weight = inputs["x"].tolist(), inputs["weight"].tolist()
    height, width = len(x[0][0]), len(x[0][0][0])

    def output(image: list[list[list[float]]], filters: list[list[list[float]]], y: int, z: int) -> float:
        return math.fsum(
            channel[y + i - 1][z + j - 1] * taps[i][j]
            for channel, taps in zip(image, filters, strict=True)
            for i in range(3)
            for j in range(3)
            if 0 < y + i <= height and 0 < z + j <= width
        )

    return [
        [[[output(image, filters, y, z) for z in range(width)] for y in range(height)] for filters in weight]
        for image in x
    ]


def attention(inputs: Inputs) -> list[list[list[float]]]:
    heads = zip(inputs["q"].tolist(), inputs["k"].tolist(), inputs["v"].tolist(), strict=True)
    return [[_attended(query, k[: i + 1], v[: i + 1]) for i, query in enumerate(q)] for q, k, v in heads]


def _attended(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    root = math.sqrt(len(query))
    weights = [math.exp(math.fsum(a * b for a, b in zip(query, key, strict=True)) / root) for key in keys]
    return [
        math.fsum(weight * value for weight, value in zip(weights, column, strict=True)) / math.fsum(weights)
        for column in zip(*values, strict=True)
    ]


def histogram(inputs: Inputs) -> list[int]:
    occurrences = Counter(inputs["values"].tolist())
    return [occurrences[value] for value in range(256)]


def spmv(inputs: Inputs) -> list[float]:
    offsets, columns = inputs["offsets"].tolist(), inputs["columns"].tolist()
    return [
        math.fsum(inputs["values"][i] * inputs["x"][columns[i]] for i in range(start, end))
        for start, end in itertools.pairwise(offsets)
    ]


def total(inputs: Inputs) -> list[float]:
    return [math.fsum(inputs["x"].tolist())]


def transpose(inputs: Inputs) -> list[list[float]]:
    return [list(column) for column in zip(*inputs["x"].tolist(), strict=True)]


def stencil(inputs: Inputs) -> list[list[float]]:
    grid = inputs["grid"].tolist()
    height, width = len(grid), len(grid[0])

    def cell(y: int, x: int) -> float:
        if y in {0, height - 1} or x in {0, width - 1}:
            return float(grid[y][x])
        around = grid[y - 1][x] + grid[y + 1][x] + grid[y][x - 1] + grid[y][x + 1]
        return float(0.6 * grid[y][x] + 0.1 * around)

    return [[cell(y, x) for x in range(width)] for y in range(height)]


FORMULAS: Mapping[str, Callable[[Inputs], Sequence[object]]] = {
    "attention": attention,
    "bias_gelu": bias_gelu,
    "conv3x3": conv3x3,
    "cross_entropy": cross_entropy,
    "cumsum": cumsum,
    "histogram": histogram,
    "int4_matmul": int4_matmul,
    "layernorm": layernorm,
    "matmul": matmul,
    "matmul_bf16": matmul,
    "rmsnorm": rmsnorm,
    "softmax": softmax,
    "spmv": spmv,
    "stencil": stencil,
    "sum": total,
    "transpose": transpose,
}


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_agrees_with_the_formula_written_out(name: str) -> None:
    task = TASKS[name]
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        inputs = _in_float64(task.draw_inputs(shape, 5))
        (found,) = task.expected(inputs, shape).values()
        np.testing.assert_allclose(found, np.array(FORMULAS[name](inputs)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.independent])
def test_a_part_of_the_outputs_follows_from_the_same_part_of_the_inputs(name: str) -> None:
    task = TASKS[name]
    along = task.independent
    for shape in task.verify_shapes:
        inputs = _in_float64(task.draw_inputs(shape, 6))
        whole = task.expected(inputs, shape)
        kept = np.arange(shape[along])[-2:]
        part = {tensor.name: _part(tensor.shape, inputs[tensor.name], along, kept) for tensor in task.inputs}
        found = task.expected(part, {**shape, along: len(kept)})
        for tensor in task.outputs:
            expected = _part(tensor.shape, whole[tensor.name], along, kept)
            np.testing.assert_allclose(found[tensor.name], expected, rtol=1e-12, atol=1e-12)


def test_the_tasks_whose_outputs_depend_on_everything() -> None:
    assert {name for name, task in TASKS.items() if not task.independent} == {
        "histogram",
        "spmv",
        "stencil",
        "sum",
    }


def _part(extents: tuple[int | str, ...], array: Array, along: str, kept: Array) -> Array:
    return np.take(array, kept, axis=extents.index(along)) if along in extents else array


def _in_float64(inputs: Inputs) -> dict[str, Array]:
    return {
        name: array if array.dtype.kind in "iu" else array.astype(np.float64)
        for name, array in inputs.items()
    }


def test_the_sparse_matrix_has_ascending_columns_and_uneven_rows() -> None:
    task = TASKS["spmv"]
    for shape in (*task.verify_shapes, *task.held_out_shapes):
        inputs = task.draw_inputs(shape, 7)
        offsets, columns = inputs["offsets"], inputs["columns"]
        lengths = np.diff(offsets)
        assert (offsets[0], offsets[-1]) == (0, shape["nonzeros"])
        assert lengths.min() >= 0
        assert columns.min() >= 0
        assert columns.max() < shape["cols"]
        same_row = np.diff(np.repeat(np.arange(shape["rows"]), lengths)) == 0
        assert (np.diff(columns)[same_row] > 0).all()
        if shape["rows"] > 100:
            assert lengths.min() == 0
            assert lengths.max() > 2 * lengths.mean() or lengths.max() == shape["cols"]
