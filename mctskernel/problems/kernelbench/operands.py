"""The tensors that a module computes with: the arguments of its forward, its parameters and its buffers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.expression import evaluate_int
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.problems.kernelbench.drawing import FEW_VALUES, Drawn, Extents, Sizes, Watched, drawn_again
from mctskernel.problems.kernelbench.probing import Operators, TooManyOperatorsError
from mctskernel.problems.kernelbench.reference import Argument, ValueSource, module_function, state_of
from mctskernel.problems.problem import blamed
from mctskernel.problems.torch_dimensions import Dimensions, awkward_shapes
from mctskernel.problems.torch_reference import dtype_name
from mctskernel.problems.torch_task import Called, called, extents_agree, output_tensors

NORMAL = Drawn("normal")

MOST_WORK = 2_200_000
"""Multiplications, reads and writes at a verify shape; every candidate is run there several times, perhaps emulated."""

MOST_RUN = 100_000_000
"""Work of a call that takes some hundredths of a second on a CPU. More is never run while a problem is read."""

FEW = 2
"""With fewer shapes to verify at, small ones are added."""

_RESERVED = frozenset({"out", "rng"})
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError)


@dataclass(frozen=True)
class Operand:
    """A tensor at its full size; `place` is the name of a parameter or buffer in the module's state."""

    name: str
    dtype: str
    size: Sizes
    source: ValueSource = ValueSource.DRAWN
    distribution: Drawn = NORMAL
    place: str = ""

    @classmethod
    def given(cls, name: str, tensor: Any, drawn: Drawn | None) -> Operand:
        """An argument of forward. Raises TaskError for an unsupported element type."""
        return cls(
            f"{name}_in" if name in _RESERVED else name,
            _dtype(name, tensor),
            tuple(tensor.shape),
            ValueSource.GET_INPUTS if drawn is None else ValueSource.DRAWN,
            drawn or NORMAL,
        )


def weight_operands(model: Any, taken: Collection[str]) -> tuple[Operand, ...]:
    """Parameters and buffers under free names, drawn around their initial values so that none can be left out."""
    found: list[Operand] = []
    names = {*taken, *_RESERVED}
    parameters = dict(model.named_parameters())
    for place, tensor in state_of(model).items():
        name = place.replace(".", "_")
        name = name if name.isidentifier() else f"w_{name}"
        while name in names:
            name += "_"
        names.add(name)
        varied = place in parameters and tensor.is_floating_point()
        found.append(
            Operand(
                name,
                _dtype(place, tensor),
                tuple(tensor.shape),
                ValueSource.DRAWN if varied else ValueSource.MODEL,
                _around(tensor) if varied else NORMAL,
                place,
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Operands:
    """A module's forward as a function of tensors, with the dimensions that can vary."""

    name: str
    model: Any
    arguments: tuple[Argument, ...]
    members: tuple[Operand, ...]
    made: Watched
    dimensions: Dimensions
    known: dict[tuple[Sizes, ...], bool] = field(default_factory=dict, repr=False, compare=False)
    """Whether the module accepts tensors of some sizes, in the order of the inputs and of what `get_inputs` makes."""
    counted: dict[tuple[Sizes, ...], int] = field(default_factory=dict, repr=False, compare=False)
    """The work at some sizes of the inputs."""
    operators: dict[tuple[Sizes, ...], int] = field(default_factory=dict, repr=False, compare=False)
    """How many are called at each of these."""

    @property
    def sizes(self) -> Shape:
        return self.dimensions.sizes

    @property
    def granularity(self) -> Mapping[str, int]:
        return self.dimensions.granularity

    @property
    def state(self) -> dict[str, str]:
        return {each.name: each.place for each in self.members if each.place}

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the inputs without extents in PyTorch."""
        return tuple(each.name for each in self.members if not each.size)

    @property
    def are_made(self) -> bool:
        """Whether some inputs come from code, not from distributions."""
        return any(each.source is not ValueSource.DRAWN for each in self.members)

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                each.name,
                each.dtype,
                extents or (1,),
                each.distribution.distribution,
                each.distribution.low,
                self._highest(each.distribution),
            )
            for each, extents in zip(self.members, self.dimensions.extents, strict=True)
        )

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        return output_tensors(self.function, self.inputs, self.sizes, self.granularity)

    @cached_property
    def function(self) -> Called:
        return module_function(self.model, self.arguments, self.state, self.scalars)

    @cached_property
    def factories(self) -> tuple[Extents, ...]:
        """Extents of get_inputs' tensors: those of inputs of equal size, in order, else that size's dimensions."""
        waiting: dict[Sizes, list[Extents]] = {}
        for each, extents in zip(self.members, self.dimensions.extents, strict=True):
            waiting.setdefault(each.size, []).append(extents)
        names = {size: name for name, size in reversed(list(self.sizes.items()))}
        found = []
        for size in self.made.sizes:
            same = waiting.get(size) or [tuple(names.get(number, number) for number in size)]
            found.append(same.pop(0) if len(same) > 1 else same[0])
        return tuple(found)

    @cached_property
    def awkward_shapes(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Small shapes to verify at and to hold out, or the smallest possible ones."""
        if not self.sizes:
            return (self.sizes,), ()
        verify, held_out = awkward_shapes(
            self.dimensions, lambda shape: self.works(shape) and self.work(shape) <= MOST_WORK
        )
        verify = () if verify == (self.sizes,) else verify
        if len(verify) >= FEW:
            return verify, held_out
        # Weights or windows make the usual ones too large.
        more = [shape for shape in self.small_shapes if shape not in (*verify, *held_out)]
        fitting = [shape for shape in more if self.work(shape) <= MOST_WORK] or more[: 1 if verify else FEW]
        verify = (*verify, *fitting[:FEW]) or (self.sizes,)
        return verify, held_out or tuple(fitting[FEW : 2 * FEW])

    @cached_property
    def small_shapes(self) -> list[Shape]:
        """The smallest possible shapes and some that are little larger, in the order of their work."""
        grains = self.granularity.items()
        shapes = [
            {name: (count + place) * grain for place, (name, grain) in enumerate(grains)}
            for count in (1, 2, 3, 5)
        ]
        return sorted(filter(self.works, shapes), key=self.work)

    def work(self, shape: Shape) -> int:
        """The approximate number of multiplications, reads and writes of a plain kernel at a shape."""
        extents = tuple(each.extents(shape) for each in self.inputs)
        if extents not in self.counted:
            with FlopCounterMode(display=False) as counter, Operators() as recorded:
                result = called(self.function, self.inputs, shape, "meta")
            self.operators[extents] = len(recorded.calls)
            products = counter.get_total_flops() // 2
            results = int(result.numel()) or MOST_RUN  # nothing can be compared in an empty one
            self.counted[extents] = products + results + sum(map(math.prod, extents))
        return self.counted[extents]

    def can_run(self, shape: Shape) -> bool:
        """Whether running the module at a shape takes little time and memory on a CPU."""
        return self.work(shape) <= MOST_RUN

    @property
    def agree(self) -> bool:
        """Whether, at other shapes, outputs have the expected extents and inputs can be made."""
        shapes = [*self.awkward_shapes[0], *self.awkward_shapes[1]]
        try:
            # At the sizes by which dimensions are recognised; and on inputs that are made, among which indices may be
            # out of range.
            if not extents_agree(self.function, self.inputs, self.outputs, shapes):
                return False
            with torch.no_grad():
                for shape in filter(self.can_run, shapes):
                    self.function(*self.values(shape, seed=0).values())
        except _FAILURES:
            return False
        return True

    def works(self, shape: Shape) -> bool:
        factories = (tuple(evaluate_int(extent, shape) for extent in each) for each in self.factories)
        extents = (*(each.extents(shape) for each in self.inputs), *factories)
        if extents in self.known:
            return self.known[extents]
        self.known[extents] = False
        try:
            self.work(shape)
            calls = self.operators[extents[: len(self.inputs)]], next(iter(self.operators.values()))
            if max(calls) > 2 * min(calls):
                return False  # a loop over a dimension
            made = self._made(shape, 0, "meta") if self.made.device == "meta" else {}
        except (TooManyOperatorsError, *_FAILURES):
            return False
        wanted = {each.name: each.extents(shape) for each in self.inputs}
        self.known[extents] = all((tuple(made[name].shape) or (1,)) == wanted[name] for name in made)
        return self.known[extents]

    def check_result(self) -> None:
        """Raise TaskError unless the result at the problem's own sizes is a tensor."""
        with (
            blamed(f"The forward of {self.name}, called with meta tensors (sizes alone), raised"),
            Operators(),
        ):
            result = called(self.function, self.inputs, self.sizes, "meta")
        if not isinstance(result, torch.Tensor):
            what = "nothing" if result is None else f"a {type(result).__name__}"
            raise TaskError(
                f"The forward of {self.name} returns {what}; KernelBench compares a single tensor."
            )

    def keeping(self, weights: Set[str]) -> Operands:
        if weights >= self.state.keys():
            return self
        kept = [
            (each, extents)
            for each, extents in zip(self.members, self.dimensions.extents, strict=True)
            if not each.place or each.name in weights
        ]
        used = {extent for _, extents in kept for extent in extents}
        dimensions = replace(
            self.dimensions.restricted([name for name in self.sizes if name in used]),
            extents=tuple(extents for _, extents in kept),
        )
        return replace(
            self, members=tuple(each for each, _ in kept), dimensions=dimensions, known={}, counted={}
        )

    def values(self, shape: Shape, seed: int) -> dict[str, Any]:
        """Fresh tensors at a shape by the names of the inputs, with the task's distributions."""
        rng = np.random.default_rng(seed)
        made = self._made(shape, seed, "cpu")
        state = state_of(self.model)
        found = {}
        for each, tensor in zip(self.members, self.inputs, strict=True):
            match each.source:
                case ValueSource.DRAWN:
                    value = torch.from_numpy(tensor.draw(shape, rng))
                case ValueSource.GET_INPUTS:
                    value = made[each.name]
                case ValueSource.MODEL:
                    value = state[each.place]
            dtype = getattr(torch, each.dtype)
            found[each.name] = value.detach().to(dtype).reshape(tensor.extents(shape)).clone()
        return found

    def _made(self, shape: Shape, seed: int, device: str) -> dict[str, Any]:
        """The inputs that come from `get_inputs`, made at a shape."""
        wanted = {each.name for each in self.members if each.source is ValueSource.GET_INPUTS}
        if not wanted:
            return {}
        drawn = drawn_again(self.made.function, self.factories, shape, seed, device)
        named = zip((each.input for each in self.arguments), drawn, strict=True)
        return {name: value for name, value in named if name in wanted}

    def _highest(self, drawn: Drawn) -> float | str:
        """The upper end of a range; integers below the size of a dimension are indices into it."""
        if drawn.distribution == "integers":
            for name, size in self.sizes.items():
                if size > 2 and drawn.high == size - 1:
                    return f"{name} - 1"
        return drawn.high


def _around(tensor: Any) -> Drawn:
    """A uniform distribution with the mean and standard deviation of a parameter's first initial values."""
    values = tensor.detach().flatten()[:FEW_VALUES]
    deviation, mean = map(float, torch.std_mean(values, correction=0)) if len(values) else (0.0, 0.0)
    reach = math.sqrt(3) * deviation or max(0.5 * abs(mean), 0.5 if mean == 0 else 0.0)
    return Drawn("uniform", float(f"{mean - reach:.3g}"), float(f"{mean + reach:.3g}"))


def _dtype(name: str, tensor: Any) -> str:
    if tensor.is_floating_point():
        return "float32"  # KernelBench's harness converts all
    if dtype_name(tensor) not in DTYPE_BYTES:
        raise TaskError(f"'{name}' is a tensor of {dtype_name(tensor)}, which isn't supported.")
    return dtype_name(tensor)
