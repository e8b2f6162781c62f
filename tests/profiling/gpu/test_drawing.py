"""Inputs drawn on a GPU: the same numbers in CUDA (emulated), numpy and PyTorch, and of their distribution."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mctskernel.core.task import Tensor
from mctskernel.profiling.emulator import Geometry, GlobalMemory, execute
from mctskernel.profiling.gpu import drawing as module
from mctskernel.profiling.gpu.drawing import SOURCE, THREADS, arguments, drawing_of, drawn, normal_table
from mctskernel.profiling.gpu.protocol import Drawing
from tests.profiling.emulator.conftest import compile_cuda

COUNT = 4 * THREADS + 7
TENSORS = [
    Tensor("x", "float32", ("n",)),
    Tensor("x", "float16", ("n",)),
    Tensor("x", "bfloat16", ("n",), "uniform", -1.3, 7.7),
    Tensor("x", "float32", ("n",), "uniform", 0.0, 1.0),
    Tensor("x", "float32", ("n",), "integers", -3, 3),
    Tensor("x", "int64", ("n",), "integers", -(1 << 31), (1 << 31) - 1),
    Tensor("x", "int32", ("n",), "integers", 0, "n"),
    Tensor("x", "bool", ("n",), "integers", 0, 1),
]


def drawing_with(tensor: Tensor, special: float | None, *key: object) -> Drawing:
    """A drawing, in every 13th place of which from the fifth there is a special value."""
    drawing = drawing_of(tensor, {"n": COUNT}, *key)
    assert drawing is not None
    return (
        drawing if special is None else msgspec.structs.replace(drawing, special=special, every=13, first=4)
    )


DRAWINGS = [
    *(pytest.param(each, None, id=f"{each.distribution} {each.dtype}") for each in TENSORS),
    *(
        pytest.param(each, special, id=f"{each.distribution} {each.dtype} {special}")
        for each in TENSORS[:3]
        for special in (np.nan, -np.inf)
    ),
]


@pytest.mark.parametrize(("tensor", "special"), DRAWINGS)
def test_numbers_are_the_same_wherever_they_are_drawn(tensor: Tensor, special: float | None) -> None:
    drawing = drawing_with(tensor, special, "secret", 3)
    found = drawn(drawing, np.arange(COUNT))
    assert np.flatnonzero(~np.isfinite(found)).tolist() == ([] if special is None else [*range(4, COUNT, 13)])
    memory = GlobalMemory()
    out = memory.add("out", np.zeros(COUNT, found.dtype))
    table = memory.add("table", normal_table())
    packed = arguments(drawing, out, found.nbytes, table)
    execute(compile_cuda(SOURCE), "draw", Geometry((1, 1, 1), (THREADS, 1, 1)), packed, memory)
    np.testing.assert_array_equal(
        *(each.astype(np.float64) for each in (memory.array("out", found.dtype), found))
    )
    places = np.array([[7, COUNT - 1], [0, 500]])
    assert drawn(drawing, places).tobytes() == found[places].tobytes()
    for start in (8, 9):  # whole blocks of the generator, and others
        assert drawn(drawing, np.arange(start, start + 400)).tobytes() == found[start : start + 400].tobytes()


@pytest.mark.parametrize(("tensor", "special"), DRAWINGS)
def test_pytorch_draws_the_same_in_pieces(
    tensor: Tensor, special: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(module, "PIECE", 100)
    drawing = drawing_with(tensor, special, "secret")
    found = module.drawn_tensor(drawing, range(3, COUNT + 3), "cpu")
    expected = drawn(drawing, np.arange(3, COUNT + 3))
    torch.testing.assert_close(
        module.drawn_tensor(drawing, np.arange(3, COUNT + 3), "cpu"), found, rtol=0, atol=0, equal_nan=True
    )
    assert torch.equal(
        module.drawn_tensor(drawing, range(4, 304), "cpu").view(torch.uint8), found[1:301].view(torch.uint8)
    )
    assert found.shape == (COUNT,)
    assert str(found.dtype).removeprefix("torch.") == tensor.dtype
    bits = {2: torch.int16, 4: torch.int32}.get(found.element_size())
    floats = tensor.dtype in {"float16", "bfloat16", "float32"}
    assert (found.view(bits) if floats else found).numpy().tobytes() == expected.tobytes()


def test_the_generator_is_philox() -> None:
    # Random123's known answer for a counter and a key of zeros.
    zeros = Drawing(0, "int64", "integers", 0, (1 << 32) - 1)
    assert list(drawn(zeros, np.arange(4))) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_numbers_have_their_distribution_and_keys_tell_tensors_apart() -> None:
    places = np.arange(1 << 18)
    found = []
    for tensor in (TENSORS[0], TENSORS[3], TENSORS[4]):
        drawing = drawing_of(tensor, {"n": 1}, 0)
        assert drawing is not None
        found.append(drawn(drawing, places).astype(np.float64))
    normal, uniform, whole = found
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert 3.5 < np.abs(normal).max() < 6
    assert (uniform.min() >= 0, uniform.max() < 1, round(uniform.mean(), 2)) == (True, True, 0.5)
    assert set(whole) == {-3, -2, -1, 0, 1, 2, 3}
    keys = {
        each.key
        for name in "xy"
        for seed in range(3)
        if (each := drawing_of(Tensor(name, "float32", (1,)), {}, seed)) is not None
    }
    assert len(keys) == 6


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("x", "float64", (1,)),
        Tensor("x", "float8_e5m2", (1,)),
        Tensor("x", "int32", (1,)),
        Tensor("x", "int64", (1,), "integers", 0, 1 << 40),
    ],
)
def test_what_the_generator_does_not_have_is_left_to_others(tensor: Tensor) -> None:
    assert drawing_of(tensor, {}, 0) is None
