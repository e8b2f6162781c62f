"""A problem's `Model` as a function of tensors: its inputs, and the parameters and buffers that its result uses.

reference.py of such tasks calls these functions. PyTorch is imported when they are called.
"""

from __future__ import annotations

import copy
import functools
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.task import Array, TaskError, Tensor
from mctskernel.core.tensor_array import TensorArray, device_of
from mctskernel.problems.problem import blamed, read_record
from mctskernel.problems.torch_reference import in_numpy

NAME = "KernelBench"

SOURCE_FILE = "problem.py"

TOLERANCE = 1e-4
"""Relative and absolute tolerance of its harness in float32 (`get_tolerance_for_precision`)."""

Plain = bool | int | float | str | None | tuple[int | float, ...]


class Argument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of `forward`: the task's input of this name, or a constant."""

    input: str = ""
    value: Plain = None


class ValueSource(StrEnum):
    """The source of a tensor's values: a distribution, the problem's `get_inputs`, or the freshly made model."""

    DRAWN = "drawn"
    GET_INPUTS = "get_inputs"
    MODEL = "model"


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input of a task with `make_inputs`, and the source of its values."""

    tensor: Tensor
    source: ValueSource


class ModuleProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `PROBLEM_FILE`.

    `state` maps the names of inputs to parameters and buffers of the module. `scalars` are the inputs and outputs
    (`out`) without extents in PyTorch, which have one of 1 in the task. `factories` are the extents of the tensors that
    `get_inputs` makes. `modes_differ` says that the module returns something else in evaluation mode.
    """

    benchmark: str
    name: str
    arguments: tuple[Argument, ...]
    state: dict[str, str] = {}
    scalars: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    factories: tuple[tuple[int | str, ...], ...] = ()
    modes_differ: bool = False


_MODULE = "mctskernel_problem"
"""The module name of a problem's classes and functions."""


def run_problem(path: Path) -> Mapping[str, Any]:
    """Run a problem's file; returns its global names. Raises TaskError."""
    with blamed(f"{path} can't be loaded:"):
        return runpy.run_path(str(path), run_name=_MODULE)


@contextmanager
def importable(names: Mapping[str, Any]) -> Iterator[None]:
    """Within the block the problem's module can be imported, as torch.compile needs it."""
    module = ModuleType(_MODULE)
    vars(module).update(names)
    sys.modules[_MODULE] = module
    try:
        yield
    finally:
        del sys.modules[_MODULE]


def made_model(names: Mapping[str, Any], device: str = "cpu") -> Any:
    """Make the model as the harness does, with only the beginning of large weights drawn. Raises TaskError."""
    import torch  # noqa: PLC0415 - as said above

    from mctskernel.problems.kernelbench.drawing import few_values  # noqa: PLC0415 - imports PyTorch

    with (
        blamed("The problem's Model can't be made:"),
        torch.no_grad(),
        torch.device(device),
        torch.random.fork_rng(devices=[]),
        few_values(),
    ):
        torch.manual_seed(42)
        given = names.get("get_init_inputs", list)()
        torch.manual_seed(42)
        model = names["Model"](*given)
    if not isinstance(model, torch.nn.Module):
        raise TaskError("The problem's Model is no torch.nn.Module.")
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):  # as good as a buffer
                delattr(module, name)
                module.register_buffer(name, value)
    return model


def copied(model: Any, shared: Mapping[int, Any] | None = None) -> Any:
    """A copy of a module, of which functions that it made for itself call the copy; what is `shared`, by id, isn't."""
    known = dict(shared or {})
    found = copy.deepcopy(model, known)
    for module in found.modules():
        for name, each in vars(module).items():
            if isinstance(each, FunctionType) and each.__closure__:
                held = (cell.cell_contents for cell in each.__closure__)
                cells = (CellType(known.get(id(value), value)) for value in held)
                own = (each.__code__, each.__globals__, each.__name__, each.__defaults__, tuple(cells))
                setattr(module, name, FunctionType(*own))
    return found


def without_running_statistics(model: Any) -> Any:
    """The model without running statistics, which its result in training mode doesn't depend on."""
    from torch.nn.modules.batchnorm import _NormBase  # noqa: PLC0415 - what all such layers are

    for each in model.modules():
        if isinstance(each, _NormBase) and each.training and each.track_running_stats:
            each.running_mean = each.running_var = each.num_batches_tracked = None
    return model


def module_function(
    model: Any, arguments: Sequence[Argument], state: Mapping[str, str], scalars: Sequence[str]
) -> Callable[..., Any]:
    """The model's forward as a function of the inputs in `arguments`, in this order, and then those in `state`."""
    import torch  # noqa: PLC0415 - as said above
    from torch.func import functional_call  # noqa: PLC0415 - as said above

    names = [each.input for each in arguments if each.input] + list(state)
    unused = {place: each for place, each in model.named_parameters() if place not in state.values()}

    def function(*tensors: Any) -> Any:
        given = {
            name: tensor.reshape(()) if name in scalars else tensor
            for name, tensor in zip(names, tensors, strict=True)
        }
        like = next(filter(torch.is_floating_point, tensors), None)
        others = {place: each if like is None else each.to(like) for place, each in unused.items()}
        context: Any = nullcontext()
        if tensors[0].is_meta:
            from mctskernel.problems.plain_cuda.decompositions import WithoutValues  # noqa: PLC0415 - a second

            context = WithoutValues()
        with context:
            return functional_call(
                model,
                others | {place: given[name] for name, place in state.items()},
                tuple(given[each.input] if each.input else each.value for each in arguments),
            )

    return function


def call_reference(folder: Path, *inputs: Array | TensorArray) -> Array | tuple[Array, ...]:
    """Call the problem of a task's folder, in the precision of its inputs. Raises TaskError."""
    wide = any(array.dtype == np.float64 for array in inputs)
    return in_numpy(_function(folder, wide, device_of(inputs)), *inputs)


def make_problem_inputs(folder: Path, rng: np.random.Generator, /, **shape: int) -> dict[str, Array]:
    """Fresh inputs of the problem of a task's folder, as its `get_inputs` makes them, at a shape."""
    from mctskernel.problems.kernelbench.drawing import drawn_again  # noqa: PLC0415 - imports PyTorch

    problem, seed = read_record(folder, ModuleProblem), int(rng.integers(1 << 62))
    names, model = _loaded(folder)
    places = [each.input for each in problem.arguments]
    given = dict(zip(places, drawn_again(names["get_inputs"], problem.factories, shape, seed), strict=True))
    found: dict[str, Array] = {}
    for origin in problem.origins:
        tensor = origin.tensor
        if tensor.name in given:
            array = given[tensor.name].detach().numpy()
        elif origin.source is ValueSource.MODEL:
            array = state_of(model)[problem.state[tensor.name]].detach().clone().numpy()
        else:
            array = tensor.draw(shape, rng)
        array = array.reshape(tensor.extents(shape)).astype(tensor.dtype, copy=False)
        found[tensor.name] = np.ascontiguousarray(array)
    return found


@functools.lru_cache(maxsize=2)
def _loaded(folder: Path) -> tuple[Mapping[str, Any], Any]:
    names = run_problem(folder / SOURCE_FILE)
    return names, made_model(names)


@functools.lru_cache(maxsize=4)
def _function(folder: Path, wide: bool, device: str) -> Callable[..., Any]:  # noqa: FBT001 - the key of a cache
    """The problem's function, with all its tensors in one precision, on a device if one is named.

    There the inputs stand in for all of the model's parameters and buffers that matter, so none of them is copied.
    """
    import torch  # noqa: PLC0415 - as said above

    problem = read_record(folder, ModuleProblem)
    precision = torch.float64 if wide else torch.float32
    model = without_running_statistics(copied(_loaded(folder)[1]))
    model = model if device else model.to(precision)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                kind = precision if value.is_floating_point() else value.dtype
                setattr(module, name, value.to(device=device or "cpu", dtype=kind))
    return module_function(model, problem.arguments, problem.state, problem.scalars)


def state_of(model: Any) -> dict[str, Any]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
