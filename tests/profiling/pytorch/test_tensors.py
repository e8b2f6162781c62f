"""Values of modules flattened and sent, and weights without constants."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.pytorch.protocol import (
    Structure,
    TensorSpec,
    arrays,
    places,
)

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("mctskernel.profiling.pytorch.tensors")

pytestmark = pytest.mark.slow  # imports PyTorch

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


@given(values)
def test_a_value_comes_back_from_its_structure_and_its_window(value: Any) -> None:
    structure, found = tensors.flatten(value)
    descriptor = tensors.window_of(found)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(structure), type=Structure)
    assert same(tensors.unpacked(sent, descriptor), value)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_tensors_of_a_window_do_not_overlap_and_are_aligned() -> None:
    wanted = [
        TensorSpec("float32", (3,)),
        TensorSpec("int64", ()),
        TensorSpec("float64", (0, 4)),
        TensorSpec("uint8", (5000,)),
    ]
    offsets, size = places(wanted)
    assert all(offset % 4096 == 0 for offset in offsets)
    window = np.zeros(size, np.uint8)
    for number, view in enumerate(arrays(window, wanted), 1):
        view[...] = number
    assert [set(view.reshape(-1).tolist()) for view in arrays(window, wanted)] == [{1}, {2}, set(), {4}]


def test_a_type_that_cannot_be_compared_is_named() -> None:
    with pytest.raises(tensors.UnsupportedValueError, match="float8_e5m2fnuz"):
        tensors.flatten(torch.zeros(2).to(torch.float8_e5m2fnuz))
    with pytest.raises(tensors.UnsupportedValueError, match="set"):
        tensors.flatten({1, 2})


def test_no_parameter_and_no_statistic_is_constant() -> None:
    with tensors.varied_initialisation():
        model = torch.nn.Sequential(
            torch.nn.LayerNorm(16), torch.nn.BatchNorm1d(16), torch.nn.GroupNorm(2, 16)
        )
    for name, tensor in model.state_dict().items():
        assert tensor.dim() == 0 or len(tensor.unique()) > 1, name
    assert (model[1].running_var > 0).all()


def test_parameters_that_are_constant_all_the_same_are_varied() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))
            self.shift = torch.nn.Parameter(torch.zeros(8))

    model = Scaled()
    tensors.vary_constants(model)
    assert len(model.scale.unique()) > 1
    assert len(model.shift.unique()) > 1
