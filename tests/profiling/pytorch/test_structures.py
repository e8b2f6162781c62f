"""What modules take and give, taken apart and put together again."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.profiling.pytorch.structures import Slot, Structure, Table, arrays, places, slots

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("mctskernel.profiling.pytorch.tensors")

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool", "complex64")

made_tensors = st.builds(
    lambda dtype, shape, seed: (
        (torch.arange(int(np.prod(shape))) * seed % 7).reshape(shape).to(getattr(torch, dtype))
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(1, 5),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
)
values = st.recursive(
    made_tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    return type(ours) is type(theirs) and bool(ours == theirs)


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_value_comes_back_from_its_structure_and_its_window(value: Any) -> None:
    structure, found = tensors.take_apart(value)
    descriptor = tensors.window_of(found)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(structure), type=Structure)
    assert same(tensors.unpacked(sent, descriptor), value)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_tensors_of_a_window_do_not_overlap_and_are_aligned() -> None:
    wanted = [Slot("float32", (3,)), Slot("int64", ()), Slot("float64", (0, 4)), Slot("uint8", (5000,))]
    offsets, size = places(wanted)
    assert all(offset % 4096 == 0 for offset in offsets)
    window = np.zeros(size, np.uint8)
    for number, view in enumerate(arrays(window, wanted), 1):
        view[...] = number
    assert [set(view.reshape(-1).tolist()) for view in arrays(window, wanted)] == [{1}, {2}, set(), {4}]


def test_a_tensor_of_a_kind_of_its_own_does_not_travel() -> None:
    class Lazy(torch.Tensor):
        pass

    with pytest.raises(tensors.StructureError, match="Lazy"):
        tensors.take_apart([torch.zeros(2).as_subclass(Lazy)])


def test_a_type_that_cannot_be_compared_is_named() -> None:
    with pytest.raises(tensors.StructureError, match="float8_e5m2fnuz"):
        tensors.take_apart(torch.zeros(2).to(torch.float8_e5m2fnuz))
    with pytest.raises(tensors.StructureError, match="set"):
        tensors.take_apart({1, 2})


def test_slots_come_in_the_order_of_the_structure() -> None:
    a, b = Slot("int8", (1,)), Slot("bool", ())
    assert list(slots(Table(("x", "y"), (b, Table(("z",), (a,)))))) == [b, a]
