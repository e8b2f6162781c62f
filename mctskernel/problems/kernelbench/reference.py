"""A module of PyTorch as a function of tensors: its inputs, and of its parameters and buffers those that matter.

Written into the reference.py of tasks that were made of such problems. PyTorch is imported when it is called.
"""

from __future__ import annotations

import copy
import functools
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from mctskernel.core.task import Array, TaskError, Tensor
from mctskernel.problems.problem import read_record
from mctskernel.torch_reference import in_numpy

SOURCE_FILE = "problem.py"

Plain = bool | int | float | str | None


class Argument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of `forward`: the task's input of this name, or a value that never changes."""

    input: str = ""
    value: Plain = None


class ValueSource(StrEnum):
    """What gives a tensor its values: a distribution, the problem's `get_inputs`, or the model as it is made."""

    DRAWN = "drawn"
    GET_INPUTS = "get_inputs"
    MODEL = "model"


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input of a task whose inputs are made, and where its values come from; how they are distributed if drawn."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    source: ValueSource
    distribution: str = "normal"
    low: float | str = 0.0
    high: float | str = 1.0

    @property
    def tensor(self) -> Tensor:
        """The input as the task has it."""
        return Tensor(self.name, self.dtype, self.shape, self.distribution, self.low, self.high)


class ModuleProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `PROBLEM_FILE` says of a problem in a Python file with a class `Model`.

    `state` are the parameters and buffers that are inputs, by the inputs' names. `scalars` are the inputs and outputs
    (`out`) that have no extents in PyTorch and one of 1 in the task. `factories` are the extents of `get_inputs`' own.
    `modes_differ` where the module gives something else once it is put into evaluation mode.
    """

    benchmark: str
    name: str
    arguments: tuple[Argument, ...]
    state: dict[str, str] = {}
    scalars: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    factories: tuple[tuple[int | str, ...], ...] = ()
    modes_differ: bool = False


def read_module_problem(folder: Path) -> ModuleProblem:
    """What a task's folder says of its problem. Raises TaskError."""
    return read_record(folder, ModuleProblem)


_MODULE = "mctskernel_problem"
"""What a problem's classes and functions call the module that they are of."""


def run_problem(path: Path) -> Mapping[str, Any]:
    """The names that a problem's file defines. Runs it, as no module of that name. Raises TaskError."""
    try:
        return runpy.run_path(str(path), run_name=_MODULE)
    except (Exception, SystemExit) as error:
        raise TaskError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error


@contextmanager
def importable(names: Mapping[str, Any]) -> Iterator[None]:
    """While this is entered, the module that a problem's names say they are of is there, as torch.compile wants it."""
    module = ModuleType(_MODULE)
    vars(module).update(names)
    sys.modules[_MODULE] = module
    try:
        yield
    finally:
        del sys.modules[_MODULE]


def made_model(names: Mapping[str, Any], device: str = "cpu") -> Any:
    """A problem's model as its harness makes it: the same every time, and in training mode. Raises TaskError."""
    import torch  # noqa: PLC0415 - as said above

    try:
        with torch.no_grad(), torch.device(device), torch.random.fork_rng(devices=[]):
            torch.manual_seed(42)
            given = names.get("get_init_inputs", list)()
            torch.manual_seed(42)
            return names["Model"](*given)
    except (Exception, SystemExit) as error:
        raise TaskError(f"The problem's Model can't be made: {type(error).__name__}: {error}") from error


def without_running_statistics(model: Any) -> Any:
    """The model, changed to forget statistics over its calls; what it gives in training mode doesn't depend on them."""
    from torch.nn.modules.batchnorm import _NormBase  # noqa: PLC0415 - what all such layers are

    for each in model.modules():
        if isinstance(each, _NormBase) and each.training and each.track_running_stats:
            each.running_mean = each.running_var = each.num_batches_tracked = None
    return model


def module_function(
    model: Any, arguments: Sequence[Argument], state: Mapping[str, str], scalars: Sequence[str]
) -> Callable[..., Any]:
    """The model's forward as a function of the inputs in `arguments`, in this order, and then of those in `state`."""
    from torch.func import functional_call  # noqa: PLC0415 - as said above

    names = [each.input for each in arguments if each.input] + list(state)

    def function(*tensors: Any) -> Any:
        given = {
            name: tensor.reshape(()) if name in scalars else tensor
            for name, tensor in zip(names, tensors, strict=True)
        }
        return functional_call(
            model,
            {place: given[name] for name, place in state.items()},
            tuple(given[each.input] if each.input else each.value for each in arguments),
        )

    return function


def with_extents(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, what it gives without extents having one of 1, as a task's outputs have."""

    def extended(*tensors: Any) -> Any:
        result = function(*tensors)
        return result.reshape(1) if hasattr(result, "dim") and result.dim() == 0 else result

    return extended


def call_problem(folder: Path, *inputs: Array) -> Array | tuple[Array, ...]:
    """What the problem in a task's folder gives on the CPU, in the precision of what comes in. Raises TaskError."""
    wide = any(array.dtype == np.float64 for array in inputs)
    return in_numpy(_function(folder, wide), *inputs)


def make_problem_inputs(folder: Path, rng: np.random.Generator, **shape: int) -> dict[str, Array]:
    """Fresh inputs of the problem in a task's folder: made as its `get_inputs` makes them, whatever their size."""
    from mctskernel.problems.kernelbench.drawing import drawn_again  # noqa: PLC0415 - imports PyTorch

    problem, seed = read_module_problem(folder), int(rng.integers(1 << 62))
    names, model = _loaded(folder)
    places = [each.input for each in problem.arguments]
    given = dict(zip(places, drawn_again(names["get_inputs"], problem.factories, shape, seed), strict=True))
    found: dict[str, Array] = {}
    for origin in problem.origins:
        tensor = origin.tensor
        match origin.source:
            case ValueSource.GET_INPUTS:
                array = given[origin.name].detach().numpy()
            case ValueSource.MODEL:
                array = state_of(model)[problem.state[origin.name]].detach().numpy()
            case ValueSource.DRAWN:
                array = tensor.draw(shape, rng)
        found[origin.name] = np.ascontiguousarray(array.reshape(tensor.extents(shape)).astype(origin.dtype))
    return found


@functools.lru_cache(maxsize=2)
def _loaded(folder: Path) -> tuple[Mapping[str, Any], Any]:
    names = run_problem(folder / SOURCE_FILE)
    return names, made_model(names)


@functools.lru_cache(maxsize=2)
def _function(folder: Path, wide: bool) -> Callable[..., Any]:  # noqa: FBT001 - the key of a cache
    """The problem's function, with everything that it holds in this precision."""
    import torch  # noqa: PLC0415 - as said above

    problem = read_module_problem(folder)
    precision = torch.float64 if wide else torch.float32
    model = without_running_statistics(copy.deepcopy(_loaded(folder)[1])).to(precision)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(module, name, value.to(precision))
    return with_extents(module_function(model, problem.arguments, problem.state, problem.scalars))


def state_of(model: Any) -> dict[str, Any]:
    """Parameters and buffers of a module by their names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
