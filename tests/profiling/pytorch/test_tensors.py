"""Values of modules flattened and sent, and weights without constants."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest

from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.pytorch.protocol import Stored, TensorSpec, arrays, places

torch = pytest.importorskip("torch")
worker = pytest.importorskip("mctskernel.profiling.pytorch.worker")

pytestmark = pytest.mark.slow  # imports PyTorch

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool", "complex64")


def tensor_of(dtype: str, *shape: int) -> Any:
    return (torch.arange(int(np.prod(shape))) * 3 % 7).reshape(shape).to(getattr(torch, dtype))


VALUES = [
    *(tensor_of(dtype, 2, 3) for dtype in DTYPES),
    tensor_of("float32"),
    tensor_of("int64", 0, 4),
    [],
    (None, True, -(2**40), 2.5, "name"),
    {"x": tensor_of("float16", 3), "rest": [(tensor_of("bool", 2), {"": 1}), [tensor_of("uint8", 4, 1)]]},
]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    return type(ours) is type(theirs) and bool(ours == theirs)


def test_values_come_back_from_their_structures_and_the_window() -> None:
    window = SharedWindow()
    stored = [worker.store(window, *worker.flatten(value)) for value in VALUES]
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=list[Stored])
    other = SharedWindow(os.dup(window.fd))
    assert all(
        same(worker.stored_value(other, each), value) for each, value in zip(sent, VALUES, strict=True)
    )
    for each in (window, other):
        each.close()


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
    with pytest.raises(worker.UnsupportedValueError, match="float8_e5m2fnuz"):
        worker.flatten(torch.zeros(2).to(torch.float8_e5m2fnuz))
    with pytest.raises(worker.UnsupportedValueError, match="set"):
        worker.flatten({1, 2})


def test_no_parameter_and_no_statistic_is_constant() -> None:
    with worker.varied_initialisation():
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
    worker.vary_constants(model)
    assert len(model.scale.unique()) > 1
    assert len(model.shift.unique()) > 1
