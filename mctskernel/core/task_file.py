"""A task folder, and how it is read.

    my_task/
        task.toml      names, shapes, tolerance, numerical contract
        reference.py   reference(...) in numpy, precise when given float64 inputs
        kernel.cu      the starting kernel in CUDA C++, its launch plan in the leading comment
        kernel.py      the starting kernel in Triton, its launch plan in the docstring; one of the two is enough
        start_NAME.cu, start_NAME.py    further starting points, if there are any

`reference` is called with the inputs, dimensions and scalars that its parameters name, and returns one array
or a tuple of arrays in the order of the outputs. `make_inputs(rng, ...)` beside it is optional: it returns a
dictionary of arrays and replaces the distributions named in `task.toml`. Where shapes of the same sizes have different
inputs, a dimension more tells them apart, that `inputs_by` names in `task.toml`: `make_inputs` gets it, kernels don't.

A recorded search space is a folder too:

    my_space/
        task.toml      space = "FILE", and a name if it isn't the folder's
        FILE           the recorded configurations (docs/recorded.md)
        kernel.toml    the configuration to start from

Tolerances are of all outputs, of one, and at some shapes:

    [tolerance]                   of every floating-point output
    relative = 1e-5

    [tolerance.quantised]         of the output 'quantised'; what it leaves out is as above
    absolute = 1

    [[tolerance.at]]              of every output, at the shapes that have these sizes
    shape = { rows = 32 }
    absolute = 1e-3
    element = { relative = 1e-2, absolute = 1e-2 }

The numerical contract says what a kernel must do with values that drawn inputs don't hold; what it leaves out is as
`Numerics` has it:

    [numerics]
    nan = "propagate"            # or "local", "unspecified"
    infinity = "propagate"       # or "local", "unspecified"
    denormals = "preserve"       # or "unspecified"
    scales = [1e-30, 1e30]       # drawn inputs times these, and everything between, must work
    tf32 = ["convolution"]       # and "matrix product": what a kernel may multiply in TF32, of a reference in PyTorch
"""

from __future__ import annotations

import importlib
import math
import re
import runpy
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from mctskernel.core import documents
from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.disk import link_outside
from mctskernel.core.documents import DocumentError, parse_toml, read_as
from mctskernel.core.dtypes import check_dtype, is_floating, numpy_dtype
from mctskernel.core.expression import ExpressionError, evaluate, names_in
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language, language_of
from mctskernel.core.task import (
    Allowance,
    Bound,
    Denormals,
    Numerics,
    Operator,
    Precision,
    Propagation,
    Shape,
    Task,
    TaskError,
    Tensor,
    Tolerance,
    ToleranceAt,
    shape_label,
)

MAX_NAME = 200  # characters of a file's name

MOST_SHAPES = 10_000  # entries of [[tolerance.at]]

_SHIPPED = Path(__file__).parents[1] / "tasks" / "builtin"


def load_task(folder: Path, language: Language | None = None) -> Task:
    """Read a task folder. Raises TaskError.

    Runs `reference.py`, which is the user's own code, unless the task is `unverified_reference`: then a language model
    wrote it, and it runs in a sandbox (`mctskernel.profiling.sandboxed_reference`).

    The starting kernel is the one in `language`: `kernel.cu` or `kernel.py`, or else the first of `start_files`.
    Without a language it is what `task.toml` calls `kernel`, or the first of all these that exists.
    """
    _check_links(folder)
    where = folder / "task.toml"
    try:
        document = parse_toml(read_text(where))
        if "space" in document:
            return _space_task(folder, read_as(document, _SpaceFile), where)
        file = read_as(document, _TaskFile)
        tolerance, tolerances, tolerances_at = read_tolerances(file.tolerance, file.outputs)
    except DocumentError as error:
        raise TaskError(f"{where} {error}.") from error
    kernel_file = _kernel_file(folder, file.kernel, language)
    code = (_sandboxed if file.unverified_reference else _reference_module)(folder / "reference.py")
    outputs = tuple(each.tensor() for each in file.outputs)
    task = Task(
        name=_name(file.name, folder, where),
        summary=file.summary,
        folder=folder,
        inputs=tuple(each.tensor() for each in file.inputs),
        outputs=outputs,
        scalars=file.scalars,
        search_shapes=file.shapes.search,
        verify_shapes=file.shapes.verify,
        held_out_shapes=file.shapes.held_out,
        held_out_timed_shapes=file.shapes.held_out_timed,
        tolerance=tolerance,
        starting_kernel=Kernel(read_text(kernel_file), language_of(kernel_file) or Language.CUDA),
        flops=file.flops,
        independent=file.independent,
        deterministic=file.deterministic,
        reference=code["reference"],
        make_inputs=code.get("make_inputs"),
        unverified_reference=file.unverified_reference,
        tolerances=tolerances,
        tolerances_at=tolerances_at,
        inputs_by=file.inputs_by,
        precision=file.precision,
        numerics=file.numerics.numerics([tolerances.get(each.name, tolerance) for each in outputs]),
    )
    for fault in _faults(task):
        raise TaskError(f"{where}: {fault}")
    return task


def read_tolerances(
    table: Mapping[str, Any], outputs: Sequence[Tensor | _Tensor]
) -> tuple[Tolerance, dict[str, Tolerance], tuple[ToleranceAt, ...]]:
    """Tolerances: every output's, single outputs', and those of single shapes. Raises DocumentError."""
    names = {tensor.name for tensor in outputs}
    own = {name: part for name, part in table.items() if name in names and isinstance(part, dict)}
    general = read_as(
        {"tolerance": {key: part for key, part in table.items() if key not in own}}, _ToleranceTables
    ).tolerance
    tolerance = replace(Tolerance(), **_stated(general))
    floating = {tensor.name for tensor in outputs if is_floating(numpy_dtype(tensor.dtype))}
    exact = Tolerance(relative=0.0, absolute=0.0)
    return (
        tolerance,
        {
            name: replace(tolerance if name in floating else exact, **_stated(read_as(part, _Tolerance)))
            for name, part in own.items()
        },
        tuple(ToleranceAt(each.shape, _stated(each)) for each in general.at),
    )


_Shape = dict[str, int]
_Shapes = Annotated[tuple[_Shape, ...], Meta(min_length=1)]
_Limit = int | float | str
_Scales = tuple[Annotated[float, Meta(gt=0, le=1)], Annotated[float, Meta(ge=1, le=sys.float_info.max)]]


class _SpaceFile(msgspec.Struct, forbid_unknown_fields=True):
    """A task whose kernels are configurations, never built or run."""

    space: str
    name: str = ""
    summary: str = ""


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[^\W\d]\w*\Z")]
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    distribution: Literal["normal", "uniform", "integers", None] = None
    low: _Limit = 0.0
    high: _Limit | None = None
    scales: _Scales | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)

    def tensor(self) -> Tensor:
        floating = is_floating(numpy_dtype(self.dtype))
        distribution = self.distribution or ("normal" if floating else "integers")
        highest = 100.0 if distribution == "integers" and self.dtype != "bool" else 1.0
        high = highest if self.high is None else self.high
        return Tensor(self.name, self.dtype, self.shape, distribution, self.low, high, self.scales)


class _ShapeLists(msgspec.Struct, forbid_unknown_fields=True):
    search: _Shapes
    verify: _Shapes
    held_out: tuple[_Shape, ...] = ()
    held_out_timed: tuple[_Shape, ...] = ()


class _Tolerance(msgspec.Struct, forbid_unknown_fields=True):
    """What a tolerance states; what it leaves out is as elsewhere."""

    relative: Allowance | UnsetType = UNSET
    absolute: Allowance | UnsetType = UNSET
    ratio: Allowance | UnsetType = UNSET
    element: Bound | UnsetType = UNSET


class _ToleranceAt(_Tolerance, forbid_unknown_fields=True, kw_only=True):
    shape: Annotated[_Shape, Meta(min_length=1)]


class _GeneralTolerance(_Tolerance, forbid_unknown_fields=True):
    at: Annotated[tuple[_ToleranceAt, ...], Meta(max_length=MOST_SHAPES)] = ()


class _ToleranceTables(msgspec.Struct):
    tolerance: _GeneralTolerance


class _Numerics(msgspec.Struct, forbid_unknown_fields=True):
    nan: Propagation | UnsetType = UNSET
    infinity: Propagation | UnsetType = UNSET
    denormals: Denormals | UnsetType = UNSET
    scales: _Scales | UnsetType = UNSET
    tf32: frozenset[Operator] | UnsetType = UNSET

    def numerics(self, tolerances: Collection[Tolerance]) -> Numerics:
        """Return the contract; where nothing may differ, denormals are preserved unless the table says otherwise."""
        exact = all(each.relative == each.absolute == 0 for each in tolerances)
        usual = {"denormals": Denormals.PRESERVE if exact else Denormals.UNSPECIFIED}
        stated = _stated(self)
        return Numerics(**(usual | stated), stated=frozenset(stated))


class _TaskFile(msgspec.Struct, forbid_unknown_fields=True):
    inputs: Annotated[tuple[_Tensor, ...], Meta(min_length=1)]
    outputs: Annotated[tuple[_Tensor, ...], Meta(min_length=1)]
    shapes: _ShapeLists
    name: str = ""
    summary: str = ""
    scalars: dict[str, int | float] = {}
    independent: str = ""
    deterministic: bool = False
    tolerance: dict[str, Any] = {}
    numerics: _Numerics = msgspec.field(default_factory=_Numerics)
    kernel: str = ""
    flops: int | str | None = None
    unverified_reference: bool = False
    inputs_by: str = ""
    precision: Precision = Precision.LOCKED


def _stated(table: msgspec.Struct) -> dict[str, Any]:
    """The fields that a file states, besides the shape that they are for."""
    fields = ((name, getattr(table, name)) for name in table.__struct_fields__ if name not in ("shape", "at"))
    return {name: value for name, value in fields if value is not UNSET}


def _space_task(folder: Path, file: _SpaceFile, where: Path) -> Task:
    if not _beside(where, "space", file.space).is_file():
        raise TaskError(f"{where}: 'space' must be the name of a file in {folder}, not {file.space!r}.")
    language = Language.CONFIGURATION
    return Task(
        name=_name(file.name, folder, where),
        starting_kernel=Kernel(read_text(folder / f"kernel{language.suffix}"), language),
        folder=folder,
        summary=file.summary,
        space=file.space,
    )


def task_of(spec: DeviceSpec) -> Task:
    """Load the task of a device, with the shapes of its trial. Raises TaskError."""
    task = load_task(spec.task_folder, spec.language)
    match spec.trial:
        case Trial.SEARCH:
            return task
        case Trial.FINAL_VALIDATION:
            return task.held_out
        case Trial.CHECK:
            return replace(task.held_out, search_shapes=task.held_out.verify_shapes[:1])
        case Trial.BASELINE:
            return replace(task.held_out, verify_shapes=())


def write_new_task(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write a task folder's files; overwrites nothing. Raises TaskError, before anything is written if one exists."""
    present = [name for name in files if (folder / name).exists()]
    if present:
        raise TaskError(f"{folder / present[0]} exists; a new task overwrites nothing.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise TaskError(f"{folder} can't be written: {error.strerror or error}.") from error


def languages(folder: Path) -> tuple[Language, ...]:
    """Return the languages that a task folder has a starting kernel in, besides one under another name."""
    return tuple(language for language in SOURCE_LANGUAGES if (folder / f"kernel{language.suffix}").is_file())


def start_files(folder: Path, language: Language) -> list[Path]:
    """Return a task folder's further starting points in a language, by name: `start_NAME.cu`, `start_NAME.py`."""
    return sorted(folder.glob(f"start_*{language.suffix}"))


def other_starts(folder: Path, language: Language | None = None) -> dict[Path, Kernel]:
    """Read what the files of starting points hold, those in Triton only where it is installed. Raises TaskError."""
    languages = (language,) if language else SOURCE_LANGUAGES if find_spec("triton") else (Language.CUDA,)
    return {file: Kernel(read_text(file), each) for each in languages for file in start_files(folder, each)}


def _kernel_file(folder: Path, name: str, language: Language | None) -> Path:
    if name:
        named = _beside(folder / "task.toml", "kernel", name)
        if language in (None, language_of(named) or Language.CUDA):
            return named
    wanted = (language,) if language else SOURCE_LANGUAGES
    files = [folder / f"kernel{each.suffix}" for each in wanted]
    starts = [file for each in wanted for file in start_files(folder, each)]
    return next((file for file in (*files, *starts) if file.exists()), files[0])


def _beside(where: Path, key: str, name: str) -> Path:
    """The file that a task file names: beside it and nowhere else, since a model may have written the name."""
    if Path(name).name != name or len(name) > MAX_NAME or not name.isprintable():
        raise TaskError(
            f"{where}: '{key}' must be the name of a file in {where.parent}, not {name[:MAX_NAME]!r}."
        )
    return where.parent / name


def _faults(task: Task) -> Iterator[str]:
    """What is wrong with a task, in sentences; only the first of them is sure to be a fault of its own."""
    yield from _name_faults(task)
    tensors = (*task.inputs, *task.outputs)
    # What only tells inputs apart is an extent of nothing: kernels don't see it.
    if task.inputs_by and any(task.inputs_by not in shape for shape in task.shapes):
        yield f"'inputs_by' is {task.inputs_by!r}, which is no dimension of every shape."
    for tensor in tensors if task.inputs_by else ():
        if any(task.inputs_by in names_in(each) for each in (*tensor.shape, tensor.low, tensor.high)):
            yield f"'{task.inputs_by}' only tells inputs apart, but '{tensor.name}' depends on it."
    for shape in task.shapes:
        yield from _extent_faults(task, shape)
    # The independent dimension must be an extent of every output by itself, so that it can be indexed.
    if task.independent and any(task.independent not in shape for shape in task.search_shapes):
        yield f"'independent' is {task.independent!r}, which is no dimension of every shape."
    for tensor in task.outputs if task.independent else ():
        if tensor.shape.count(task.independent) != 1:
            yield (
                f"'{task.independent}' is said to be independent, but the output '{tensor.name}' doesn't have it as "
                "one of its extents."
            )
    # A tolerance for a size that no shape has is a mistake in writing. Only single sizes: testing each entry against
    # each shape could take long.
    known = {(name, size) for shape in task.shapes for name, size in shape.items()}
    for name, size in ((name, size) for entry in task.tolerances_at for name, size in entry.shape.items()):
        if (name, size) not in known:
            yield f"[[tolerance.at]] is for {name}={size}, which no shape has."


def _name_faults(task: Task) -> Iterator[str]:
    if len({each.name for each in task.outputs}) < len(task.outputs):
        yield "two [[outputs]] tables have the same name."
    known: dict[str, str] = {}
    for kind, names in (
        ("an input", [tensor.name for tensor in task.inputs]),
        ("an output", [tensor.name for tensor in task.outputs]),
        ("a scalar", list(task.scalars)),
        ("a dimension", sorted({name for shape in task.search_shapes for name in shape})),
    ):
        for name in names:
            if name in task.in_place and kind == "an output":
                tensors = [each for each in (*task.inputs, *task.outputs) if each.name == name]
                if len({(each.dtype, each.shape) for each in tensors}) > 1:
                    yield f"'{name}' is an input and an output, and so in place; both need the same dtype and shape."
            elif name in known:
                yield f"'{name}' is {known[name]} and {kind}; names must differ."
            known[name] = kind


def _extent_faults(task: Task, shape: Shape) -> Iterator[str]:
    what = ""
    try:
        for tensor in (*task.inputs, *task.outputs):
            what = f"shape of '{tensor.name}'"
            extents = tensor.extents(shape)
            if any(extent < 1 for extent in extents):
                yield (
                    f"'{tensor.name}' has the shape {extents} at {shape_label(shape)}; every extent must be at least 1."
                )
        for tensor in task.inputs:
            what = f"[[inputs]] '{tensor.name}'"
            low, high = tensor.limits(shape)
            if not (math.isfinite(high - low) and low <= high):
                yield (
                    f"{what}: at {shape_label(shape)} it would be drawn from {low:g} to {high:g}; both must be finite, "
                    "'low' first."
                )
            dtype = numpy_dtype(tensor.dtype)
            if not is_floating(dtype):
                least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
                if low < least or high > most:
                    yield f"{what}: {low:g} to {high:g} doesn't fit {tensor.dtype}."
        what = "flops"
        if task.flops is not None:
            evaluate(task.flops, {**task.scalars, **shape})
    except ExpressionError as error:
        yield f"{what}: {error}"


def _check_links(folder: Path) -> None:
    """What a task shows to models and writes down is what its folder holds. An installation may be made of links."""
    if folder.is_relative_to(_SHIPPED):
        return
    try:
        found = link_outside(folder)
    except OSError:
        return  # reported for the missing file
    if found is not None:
        raise TaskError(f"{found} is a link that leads out of the task's folder: put the file itself there.")


def read_text(path: Path) -> str:
    """Read the text of a file of a task or problem, with plain line ends. Raises TaskError."""
    try:
        return documents.read_text(path)
    except DocumentError as error:
        raise TaskError(f"{path} {error}.") from error


def read_bytes(path: Path) -> bytes:
    """Read the content of a file of a task or problem. Raises TaskError."""
    try:
        return documents.read_file(path)
    except DocumentError as error:
        raise TaskError(f"{path} {error}.") from error


def _reference_module(path: Path) -> dict[str, Any]:
    read_text(path)
    try:
        code = runpy.run_path(str(path), run_name="mctskernel_reference")
    except (Exception, SystemExit) as error:
        raise TaskError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    if not callable(code.get("reference")):
        raise TaskError(f"{path} doesn't define a function called 'reference'.")
    return code


def _sandboxed(path: Path) -> dict[str, Any]:
    """A reference that a language model wrote; the sandbox is found by name, as the core imports no `profiling`."""
    sandbox = importlib.import_module("mctskernel.profiling.sandboxed_reference")
    try:
        return {"reference": sandbox.SandboxedReference(read_text(path))}
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


def _name(name: str, folder: Path, where: Path) -> str:
    name = name or folder.resolve().name
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise TaskError(f"{where}: the name {name!r} may hold letters, digits, '_', '-' and '.' only.")
    return name
