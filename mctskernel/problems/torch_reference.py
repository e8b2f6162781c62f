"""A PyTorch function as a task's reference: numpy in, numpy out, in the precision of the inputs.

reference.py of tasks that `mctskernel new-task --from-torch` makes calls these functions. PyTorch is imported when the
reference is called, not when its task is read.
"""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from mctskernel.core.dtypes import DTYPE_BYTES, arithmetic_dtype, is_floating
from mctskernel.core.task import Array, TaskError, Tensor
from mctskernel.core.tensor_array import TensorArray, device_of
from mctskernel.profiling.gpu.reference_device import hold

_ONE_CALL = threading.Lock()
"""PyTorch's default precision is global, and so are parameters that inputs stand in for."""

MOST_THREADS, WORTH_THREADS = 4, 1 << 20
"""Threads of a call on the CPU, and elements of inputs from which on there is more than one: many calls are made beside
others, on small tensors, and threads by the core wait for each other."""


def call_in_numpy(where: str, name: str, *inputs: Array | TensorArray) -> Array | tuple[Array, ...]:
    """Call a function; with 64-bit inputs everything is computed in 64 bits, in spite of casts.

    `where` is the path of a Python file or the name of a module, `name` that of its function. Raises TaskError if
    there is none.
    """
    return in_numpy(find_function(where, name), *inputs)


def in_numpy(function: Callable[..., Any], *inputs: Array | TensorArray) -> Array | tuple[Array, ...]:
    """Call a function of tensors on their device, or else the CPU, without TensorFloat-32; one thread at a time."""
    import torch  # noqa: PLC0415 - a task is read by many processes that never call its reference

    if _CAPTURED is not None:
        _CAPTURED.append(function)
        raise _CapturedError
    widths = [array.dtype.itemsize for array in inputs if is_floating(array.dtype)]
    precision = torch.float64 if max(widths, default=4) > 4 else torch.float32
    device = device_of(inputs)
    elsewhere = torch.device(device) if device else nullcontext()
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if device else nullcontext()
    fast = _fast_convolutions(device)
    if device:
        hold()
    with _ONE_CALL, torch.no_grad(), elsewhere, exact, fast, _in_precision(precision):
        before = torch.get_default_dtype()
        torch.set_default_dtype(precision)
        try:
            with few_threads(MOST_THREADS if sum(array.size for array in inputs) > WORTH_THREADS else 1):
                result = function(*(tensor_of(array, precision) for array in inputs))
        finally:
            torch.set_default_dtype(before)
    made = _on_its_device if device else array_of
    return made(result) if isinstance(result, torch.Tensor) else tuple(map(made, result))


@contextmanager
def few_threads(most: int = 1) -> Iterator[None]:
    """Have PyTorch use so many threads at most on the CPU."""
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    torch.set_num_threads(min(before, most))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fast_convolutions(device: str) -> AbstractContextManager[Any]:
    """Compute float64 convolutions on a GPU faster than cuDNN does."""
    if not device.startswith("cuda"):
        return nullcontext()
    from mctskernel.profiling.float64_convolutions import Float64Convolutions  # noqa: PLC0415 - imports PyTorch

    return Float64Convolutions()  # type: ignore[no-untyped-call]


@contextmanager
def captured() -> Iterator[list[Callable[..., Any]]]:
    """List what references call within the block, uncalled: it ends there. For single-threaded processes."""
    global _CAPTURED  # noqa: PLW0603 - references are called through code that isn't ours
    found = _CAPTURED = list[Callable[..., Any]]()
    try:
        with suppress(_CapturedError):
            yield found
    finally:
        _CAPTURED = None


class _CapturedError(BaseException):
    """Passes through what turns exceptions of a reference into sentences."""


_CAPTURED: list[Callable[..., Any]] | None = None


def listed_results(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def tensor_of(array: Array | TensorArray, precision: Any) -> Any:
    """A copy of an array as a tensor; floating-point numbers in this precision of PyTorch."""
    import torch  # noqa: PLC0415 - as above

    if isinstance(array, TensorArray):
        return array.tensor.to(precision if is_floating(array.dtype) else array.tensor.dtype, copy=True)
    if not is_floating(array.dtype):
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.astype(arithmetic_dtype(array.dtype), order="C")).to(precision)


def tensors_of(drawn: Mapping[str, Array], tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Drawn inputs of a task as tensors, each in its own precision."""
    import torch  # noqa: PLC0415 - as above

    return {each.name: tensor_of(drawn[each.name], getattr(torch, each.dtype)) for each in tensors}


def array_of(tensor: Any) -> Array:
    """A tensor's values, with an extent of 1 where it has none. Raises TaskError for what tasks don't support."""
    return np.asarray(_on_its_device(tensor))


def _on_its_device(tensor: Any) -> Array:
    """As `array_of`, where the tensor is."""
    import torch  # noqa: PLC0415 - as above

    if not isinstance(tensor, torch.Tensor):
        raise TaskError(f"A tensor is needed, not a {type(tensor).__name__}.")
    name = dtype_name(tensor)
    if name not in DTYPE_BYTES:
        raise TaskError(f"A tensor of {name} isn't supported.")
    return cast("Array", TensorArray(tensor.detach().reshape(tensor.shape or (1,))))


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@functools.lru_cache
def find_function(where: str, name: str) -> Callable[..., Any]:
    """A function of a Python file or an importable module. Raises TaskError."""
    try:
        module = where
        if where.endswith(".py"):  # torch.compile imports the module of what it compiles
            module = f"mctskernel_reference_{len(sys.modules)}"
            made = sys.modules[module] = ModuleType(module)
            vars(made).update(runpy.run_path(where, run_name=module))
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise TaskError(f"{Path(where).name} can't be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise TaskError(f"{Path(where).name} has no function called '{name}'.")
    return found  # type: ignore[no-any-return] # any callable


def _in_precision(precision: Any) -> Any:
    """Within this mode casts and new tensors keep this floating-point precision; casts to fp8 round."""
    import torch  # noqa: PLC0415 - as above
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415 - as above

    from mctskernel.problems.plain_cuda.decompositions import scaled_product  # noqa: PLC0415 - as above

    casts = {torch.Tensor.float, torch.Tensor.double, torch.Tensor.half, torch.Tensor.bfloat16}

    fp8 = {torch.float8_e4m3fn, torch.float8_e5m2}

    class InPrecision(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in casts:
                return args[0].to(precision)
            if function is torch.Tensor.to and fp8.intersection((*args[1:], *(kwargs or {}).values())):
                return function(*args, **(kwargs or {})).to(precision)
            args = tuple(map(wide, args))
            called = scaled_product if function is torch._scaled_mm else function
            return called(*args, **{name: wide(each) for name, each in (kwargs or {}).items()})

    def wide(value: Any) -> Any:
        return precision if isinstance(value, torch.dtype) and value.is_floating_point else value

    return InPrecision()
