"""A PyTorch tensor, perhaps on a GPU, where a task's reference may take an array."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np

from mctskernel.core.dtypes import DType, numpy_dtype
from mctskernel.core.task import Array


class TensorArray:
    """What a reference whose `takes_tensors` is set gets instead of an array; numpy gets a copy of its numbers."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> DType:
        """The element type, as numpy has it."""
        return numpy_dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    def astype(self, dtype: Any, *, copy: bool = True) -> TensorArray:
        import torch  # noqa: PLC0415 - there is a tensor, so it is imported already

        return TensorArray(self.tensor.to(getattr(torch, np.dtype(dtype).name), copy=copy))

    def take(self, indices: Array, axis: int) -> TensorArray:
        import torch  # noqa: PLC0415 - as above

        return TensorArray(
            self.tensor.index_select(axis, torch.as_tensor(indices, device=self.tensor.device))
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: FBT001 - numpy's protocol
        narrow = self.tensor.is_floating_point() and self.tensor.element_size() < 4
        tensor = (self.tensor.float() if narrow else self.tensor).cpu().contiguous()
        values = tensor.numpy().astype(self.dtype, copy=False)
        return np.asarray(values if dtype is None else values.astype(dtype))


def on_device(array: Array, device: str) -> Array:
    """An array as a tensor on a device, as PyTorch names it; itself without one."""
    if not device:
        return array
    import torch  # noqa: PLC0415 - only who has a device for it needs it

    name = array.dtype.name
    if not hasattr(np, name):
        # numpy's borrowed types, which PyTorch doesn't read.
        array = array.view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
    tensor = torch.from_numpy(np.ascontiguousarray(array)).view(getattr(torch, name))
    return cast("Array", TensorArray(tensor.to(device)))


def device_of(inputs: Iterable[Array | TensorArray]) -> str:
    """PyTorch's name of the device that the inputs are on; empty for numpy's arrays."""
    return next((str(each.tensor.device) for each in inputs if isinstance(each, TensorArray)), "")


def arange_on(device: str) -> Callable[[int], Any]:
    """What makes the numbers below another one: numpy, or PyTorch on a device."""
    if not device:
        return np.arange
    import torch  # noqa: PLC0415 - as above

    return partial(torch.arange, device=device)


def replaced(array: Array | TensorArray, where: Array, values: Array | float) -> Array:
    """A copy of an array with other values where a mask has them; of a tensor, on its device."""
    if not isinstance(array, TensorArray):
        return np.where(where, values, array)
    import torch  # noqa: PLC0415 - there is a tensor, so it is imported already

    old = array.tensor
    mask, new = (torch.as_tensor(each, device=old.device) for each in (where, values))
    return cast("Array", TensorArray(torch.where(mask, new.to(old.dtype), old)))
