"""A task: what is computed, on which shapes, and with which tolerance."""

from __future__ import annotations

import enum
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mctskernel.core.dtypes import DTYPE_BYTES, has_infinity, is_floating, is_number, numpy_dtype
from mctskernel.core.expression import Number, evaluate, evaluate_int
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Buffer, ResolvedPlan, plan_of, resolve
from mctskernel.core.user_errors import BadTaskError

Array = npt.NDArray[Any]
Shape = Mapping[str, int]
Chosen = Callable[[str, Array], Array]
"""The part that is wanted of an output, by name."""


SLICE = 1 << 22
"""Elements that are drawn at once."""

UNVERIFIED_REFERENCE = "unverified reference: a language model wrote it, and it was not checked"
"""The warning beside every speed-up of an unverified_reference task."""

RELAXED_PRECISION = (
    "relaxed precision: within the benchmark's tolerance, which allows less precision than PyTorch has"
)
"""The warning beside every speed-up of a task of relaxed precision."""


class TaskError(BadTaskError, ValueError):
    """A task that can't be used; the message is a sentence that names the file and what is wrong."""


SCALES = (2.0**-10, 64.0)
"""What drawn inputs are multiplied by, unless the task states it."""


class Propagation(enum.StrEnum):
    """What becomes of a NaN, or an infinity, among the inputs. Elements that don't depend on it are right either way.

    `PROPAGATE`: outputs hold what the reference, in float64, makes of it.

    `LOCAL`: so they do, but what IEEE 754 or CUDA leave to the algorithm is left to it. A NaN may win or lose in a
    maximum, a minimum, a comparison or a sort, as `fmaxf` and `numpy.maximum` differ; an infinity may become a NaN
    (`inf - inf` in an online softmax), and where the reference has a NaN for it anything will do.

    `UNSPECIFIED`: no input holds one.
    """

    PROPAGATE = "propagate"
    LOCAL = "local"
    UNSPECIFIED = "unspecified"


class Denormals(enum.StrEnum):
    """Whether numbers below the smallest normal one keep their digits, or don't occur."""

    PRESERVE = "preserve"
    UNSPECIFIED = "unspecified"


class Precision(enum.StrEnum):
    """Whether a kernel must be as precise as PyTorch is, or as a benchmark asks."""

    LOCKED = "locked"
    RELAXED = "relaxed"


class Operator(enum.StrEnum):
    """Operators of PyTorch that may multiply 32-bit floats in TF32."""

    CONVOLUTION = "convolution"
    MATMUL = "matrix product"


@dataclass(frozen=True)
class Numerics:
    """A task's numerical contract.

    What is `stated` in `task.toml` is checked in every floating-point input; the rest only in those that are drawn
    from a normal distribution, since others, as probabilities, may have no use for such values. `tf32` are operators
    of a PyTorch reference that a kernel may compute in TF32.
    """

    nan: Propagation = Propagation.LOCAL
    infinity: Propagation = Propagation.LOCAL
    denormals: Denormals = Denormals.UNSPECIFIED
    scales: tuple[float, float] = SCALES
    tf32: frozenset[Operator] = frozenset()
    stated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tensor:
    """An input or output: extents, and the range of a distribution, are numbers or expressions over the dimensions.

    `scales` is what an input is multiplied by at the least and at the most, where it isn't what the task says.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    distribution: str = "normal"
    low: float | str = 0.0
    high: float | str = 1.0
    scales: tuple[float, float] | None = None

    def extents(self, shape: Shape) -> tuple[int, ...]:
        return tuple(evaluate_int(extent, shape) for extent in self.shape)

    def limits(self, shape: Shape) -> tuple[float, float]:
        """Return the range of the distribution at one shape."""
        return float(evaluate(self.low, shape)), float(evaluate(self.high, shape))

    def nbytes(self, shape: Shape) -> int:
        return math.prod(self.extents(shape)) * DTYPE_BYTES[self.dtype]

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        dtype, extents = numpy_dtype(self.dtype), self.extents(shape)
        low, high = self.limits(shape)
        if self.distribution == "integers":
            return rng.integers(int(low), int(high), extents, endpoint=True).astype(dtype)
        if self.distribution == "uniform":
            drawn = np.empty(extents, dtype)
            flat = drawn.reshape(-1)
            for start in range(0, flat.size, SLICE):  # numpy draws in float64, twice the memory
                part = flat[start : start + SLICE]
                part[...] = rng.uniform(low, high, part.size)
            return drawn
        if dtype.itemsize <= 4:
            return rng.standard_normal(extents, dtype=np.float32).astype(dtype, copy=False)
        return rng.standard_normal(extents).astype(dtype)


Allowance = Annotated[float, Meta(ge=0)]
FiniteAllowance = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far each element may be by its own size: `absolute + relative * |ref|`, and never more than `most`."""

    relative: FiniteAllowance
    absolute: FiniteAllowance
    most: Allowance = math.inf


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the float64 reference.

    An element passes when `|out - ref| <= absolute + relative * (largest |ref| of its last-axis row)`; where a whole
    output is one row, what reaches the element takes that one's place if it is less. The largest error may be at most
    `ratio` times that of the reference run in the inputs' own precision, or within the absolute part. Integers and
    truth values must be equal, unless a tolerance of their own lets them differ by its absolute part. Where `element`
    is given, an element must be within that too, as benchmarks ask that measure each element by itself.
    """

    relative: float = 1e-5
    absolute: float = 1e-6
    ratio: float = 16.0
    element: Bound | None = None


@dataclass(frozen=True)
class ToleranceAt:
    """What differs in the tolerances of floating-point outputs at the shapes that have these sizes."""

    shape: Shape
    changes: Mapping[str, Any]

    def fits(self, shape: Shape) -> bool:
        return all(shape.get(name) == size for name, size in self.shape.items())


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is computed, and what counts as right. Functions that take a shape need every dimension in it.

    `independent` names a dimension along which nothing depends on anything else (the rows of a softmax): outputs
    at some of its indices follow from the inputs at the same ones. Empty where there is none. `deterministic` asks
    that two runs on the same inputs leave the same bytes. `space` is a file of the folder: the task is then to search
    the recorded times of configurations in it, and has neither tensors nor shapes. `unverified_reference` says that the
    reference was written by a language model and not checked: what is verified against it may compute the wrong thing.
    `held_out_timed_shapes` are of the search's size, for timing in final validation only; a `thorough` task is verified
    on inputs of every kind, others on one kind at a time. `inputs_by` names a dimension that only
    `make_inputs` and `tolerances_at` use, such as the number of a benchmark's workload: kernels don't see it.
    Where `precision` is relaxed, the tolerance alone counts, and numbers made to find lower precision are left out.
    """

    name: str
    starting_kernel: Kernel
    summary: str = ""
    folder: Path = Path()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    scalars: Mapping[str, Number] = field(default_factory=dict)
    search_shapes: tuple[Shape, ...] = ()
    verify_shapes: tuple[Shape, ...] = ()
    held_out_shapes: tuple[Shape, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    flops: int | str | None = None
    independent: str = ""
    deterministic: bool = False
    reference: Callable[..., object] = field(repr=False, default=lambda: None)
    make_inputs: Callable[..., Mapping[str, Array]] | None = field(repr=False, default=None)
    space: str = ""
    unverified_reference: bool = False
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    numerics: Numerics = field(default_factory=Numerics)
    held_out_timed_shapes: tuple[Shape, ...] = ()
    thorough: bool = False
    tolerances_at: tuple[ToleranceAt, ...] = ()
    inputs_by: str = ""
    precision: Precision = Precision.LOCKED

    @property
    def caveats(self) -> tuple[str, ...]:
        unverified = [UNVERIFIED_REFERENCE] if self.unverified_reference else []
        return (*unverified, *([RELAXED_PRECISION] if self.precision is Precision.RELAXED else []))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape: those that are searched at, verified at, held out, and held out to be timed, in this order."""
        return (*self.search_shapes, *self.verify_shapes, *self.held_out_shapes, *self.held_out_timed_shapes)

    @property
    def held_out(self) -> Task:
        """The task for final validation: verified and timed at its held-out shapes, as far as there are any."""
        return replace(
            self,
            search_shapes=self.held_out_timed_shapes or self.search_shapes,
            verify_shapes=self.held_out_shapes or self.verify_shapes,
            held_out_shapes=(),
            held_out_timed_shapes=(),
            thorough=True,
        )

    @property
    def reference_source(self) -> str:
        """The text of its reference.py; empty if it has none."""
        path = self.folder / "reference.py"
        return path.read_text("utf-8", "replace") if path.is_file() else ""

    @property
    def takes_tensors(self) -> bool:
        """Whether the reference, by its attribute of this name, takes arrays that are PyTorch tensors."""
        return getattr(self.reference, "takes_tensors", False) is True

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """Inputs, then outputs; one that is both, once."""
        return tuple(dict.fromkeys(tensor.name for tensor in (*self.inputs, *self.outputs)))

    def buffers(self, shape: Shape) -> dict[str, Buffer]:
        """Return what a launch plan's arguments can point to, at a shape."""
        return {each.name: Buffer(each.dtype, each.extents(shape)) for each in (*self.inputs, *self.outputs)}

    def resolved(self, kernel: Kernel, shape: Shape) -> ResolvedPlan:
        """Resolve a kernel's launch plan at a shape. Raises LaunchPlanError."""
        return resolve(plan_of(kernel), self.names(shape, kernel), self.buffers(shape))

    @property
    def in_place(self) -> frozenset[str]:
        """The outputs that share an input's buffer."""
        return frozenset(tensor.name for tensor in self.outputs) & {tensor.name for tensor in self.inputs}

    def receivers(self, key: str) -> tuple[Tensor, ...]:
        """Return the inputs that have what `key` names: `nan`, `infinity`, `denormals`, or `scales` beside the drawn.

        Every float where the contract states it; otherwise those drawn from a normal distribution.
        """
        return tuple(
            tensor
            for tensor in self.inputs
            if is_floating(numpy_dtype(tensor.dtype))
            and (
                (key in self.numerics.stated and key != "scales")
                or (tensor.distribution == "normal" and self.make_inputs is None)
            )
            and (key != "infinity" or has_infinity(numpy_dtype(tensor.dtype)))
        )

    @property
    def ranged(self) -> tuple[Tensor, ...]:
        """The floating-point inputs that are drawn from an interval."""
        return tuple(
            tensor
            for tensor in self.inputs
            if self.make_inputs is None
            and tensor.distribution == "uniform"
            and is_floating(numpy_dtype(tensor.dtype))
        )

    def tolerance_of(self, output: str, shape: Shape | None = None) -> Tolerance:
        """Return the tolerance of one output, at a shape if one is given. Of several that fit, the last wins."""
        tolerance = self.tolerances.get(output, self.tolerance)
        for entry in self.tolerances_at:
            if shape is not None and entry.fits(shape):
                tolerance = replace(tolerance, **entry.changes)
        return tolerance

    def names(self, shape: Shape, kernel: Kernel) -> dict[str, Number]:
        """Return what a launch plan's expressions may use: macros, scalars, dimensions (the last wins)."""
        seen = {name: size for name, size in shape.items() if name != self.inputs_by}
        return {**kernel.macros, **self.scalars, **seen}

    def compulsory_bytes(self, shape: Shape) -> int:
        """Each input read once and each output written once."""
        return sum(tensor.nbytes(shape) for tensor in (*self.inputs, *self.outputs))

    def draw_inputs(self, shape: Shape, seed: int, only: Collection[str] = ()) -> dict[str, Array]:
        """Fresh inputs, the same for the same seed and shape.

        `only` names those that are wanted, if not all; `make_inputs` can't be asked for a part, and makes all.
        """
        if self.make_inputs is None:
            # Each from a stream of its own, so that one of them doesn't cost the others.
            return {
                tensor.name: tensor.draw(shape, np.random.default_rng((seed, index)))
                for index, tensor in enumerate(self.inputs)
                if not only or tensor.name in only
            }
        made = self._call(self.make_inputs, {"rng": np.random.default_rng(seed), **shape, **self.scalars})
        if not isinstance(made, Mapping):
            raise TaskError(f"{self._where}: make_inputs must return a dictionary of arrays.")
        found = {}
        for tensor in self.inputs:
            array = _with_extents(made.get(tensor.name), tensor, shape, f"{self._where}: make_inputs")
            if array.dtype != numpy_dtype(tensor.dtype):
                raise TaskError(
                    f"{self._where}: make_inputs made '{tensor.name}' as {array.dtype}, task.toml says {tensor.dtype}."
                )
            found[tensor.name] = np.ascontiguousarray(array)
        return found

    def expected(
        self, inputs: Mapping[str, Array], shape: Shape, part: Chosen | None = None
    ) -> dict[str, Array]:
        """Compute the reference's outputs for inputs of any precision; call it with float64 inputs for the truth.

        Only the `part` of an output is copied from a device where the reference leaves it.
        """
        result = self._call(self.reference, {**inputs, **shape, **self.scalars})
        arrays = result if isinstance(result, tuple) else (result,)
        if len(arrays) != len(self.outputs):
            raise TaskError(
                f"{self._where}: reference returned {len(arrays)} array(s) for {len(self.outputs)} output(s)."
            )
        return {
            tensor.name: _with_extents(array, tensor, shape, f"{self._where}: reference", part)
            for tensor, array in zip(self.outputs, arrays, strict=True)
        }

    @property
    def _where(self) -> str:
        return str(self.folder / "reference.py")

    def _call(self, function: Callable[..., object], available: Mapping[str, object]) -> object:
        parameters = inspect.signature(function).parameters
        given = {name: available[name] for name in parameters if name in available}
        unknown = [
            name
            for name, parameter in parameters.items()
            if name not in available and parameter.default is parameter.empty
        ]
        if unknown:
            raise TaskError(
                f"{self._where}: {function.__name__} has the parameter '{unknown[0]}'; "
                f"it may use {', '.join(sorted(available))}."
            )
        try:
            return function(**given)
        except TaskError as error:
            raise TaskError(f"{self._where}: {error}") from error
        except (Exception, SystemExit) as error:
            raise TaskError(
                f"{self._where}: {function.__name__} raised {type(error).__name__}: {error}"
            ) from error


def short_caveats(caveats: Collection[str]) -> str:
    """Return the caveats of a task as they follow a number: `, relaxed precision`."""
    return "".join(f", {each.partition(':')[0]}" for each in caveats)


def shape_label(shape: Shape) -> str:
    """Return a shape as people write it: `rows=8192 cols=4096`."""
    return " ".join(f"{name}={value}" for name, value in shape.items())


def _with_extents(array: Any, tensor: Tensor, shape: Shape, what: str, part: Chosen | None = None) -> Array:
    from mctskernel.core.tensor_array import TensorArray  # noqa: PLC0415 - it needs types of this module

    try:
        found: Any = array if isinstance(array, TensorArray) else np.asarray(array)
    except ValueError as error:
        raise TaskError(f"{what} made '{tensor.name}', which is no array: {error}") from error
    if not is_number(found.dtype):
        raise TaskError(f"{what} made '{tensor.name}' of {type(array).__name__}, not of numbers.")
    if found.shape != tensor.extents(shape):
        raise TaskError(
            f"{what} made '{tensor.name}' with the shape {found.shape}; "
            f"at {shape_label(shape)} task.toml says {tensor.extents(shape)}."
        )
    return np.asarray(found if part is None else part(tensor.name, found))
