"""A task folder, and how it is read.

    my_task/
        task.toml      names, shapes, tolerance, numerical contract
        reference.py   reference(...) in numpy, precise when given float64 inputs
        kernel.cu      the starting kernel in CUDA C++, its launch plan in the leading comment
        kernel.py      the starting kernel in Triton, its launch plan in the docstring; one of the two is enough

`reference` is called with the inputs, dimensions and scalars that its parameters name, and returns one array
or a tuple of arrays in the order of the outputs. `make_inputs(rng, ...)` beside it is optional: it returns a
dictionary of arrays and replaces the distributions named in `task.toml`. Where shapes of the same sizes have different
inputs, a dimension more tells them apart, that `inputs_by` names in `task.toml`: `make_inputs` gets it, kernels don't.

A recorded search space is a folder too:

    my_space/
        task.toml      space = "FILE", and a name if it isn't the folder's
        FILE           the recorded configurations (docs/recorded.md)
        kernel.toml    the configuration to start from
"""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from mctskernel.core.device import DeviceSpec, Trial
from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.dtypes import DTYPE_BYTES, is_floating, numpy_dtype
from mctskernel.core.expression import ExpressionError, Number, evaluate, names_in
from mctskernel.core.interpreted_reference import InterpretedReference
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.links import stray_link
from mctskernel.core.numerics import Numerics, NumericsError, read_numerics, read_scales
from mctskernel.core.reference_language import RefusedReferenceError
from mctskernel.core.task import (
    DISTRIBUTIONS,
    Shape,
    Task,
    TaskError,
    Tensor,
    Tolerance,
    recorded_task,
    shape_label,
)
from mctskernel.core.tolerance_file import check_tolerances_at, read_tolerances

MAX_BYTES = 16 << 20
"""Of a file of a task, besides a recorded space."""

MAX_NAME = 200
"""Characters of a file's name."""

_SHIPPED = Path(__file__).parents[1] / "tasks"


def load_task(folder: Path, language: Language | None = None) -> Task:
    """Read a task folder. Runs `reference.py`, which is the user's own code unless the task is `unanchored`: then it
    is interpreted (`mctskernel.core.interpreted_reference`). Raises TaskError.

    The starting kernel is the one in `language`: `kernel.cu` or `kernel.py`. Without one it is what `task.toml` calls
    `kernel`, or the first of the two that exists.
    """
    _check_links(folder)
    document = _document(folder / "task.toml")
    where = folder / "task.toml"
    if "space" in document:
        return _space_task(folder, document, where)
    known = {
        "name",
        "summary",
        "inputs",
        "outputs",
        "scalars",
        "shapes",
        "independent",
        "deterministic",
        "tolerance",
        "numerics",
        "kernel",
        "flops",
        "unanchored",
        "inputs_by",
    }
    unknown = sorted(document.keys() - known)
    if unknown:
        raise TaskError(f"{where} has the unknown key '{unknown[0]}' (known: {', '.join(sorted(known))}).")
    kernel_file = _kernel_file(folder, document, language)
    unanchored = _truth(document, "unanchored", where)
    code = (_interpreted if unanchored else _reference_module)(folder / "reference.py")
    name = _name(document, folder, where)
    shapes = document.get("shapes")
    if not isinstance(shapes, dict):
        raise TaskError(f"{where} needs a [shapes] table with 'search' and 'verify' lists.")
    outputs = _tensors(document, "outputs", where)
    tolerance, tolerances, tolerances_at = read_tolerances(document, outputs, where)
    task = Task(
        name=name,
        summary=_text(document, "summary", where, ""),
        folder=folder,
        inputs=_tensors(document, "inputs", where),
        outputs=outputs,
        scalars=_scalars(document, where),
        search_shapes=_shapes(shapes, "search", where, required=1),
        verify_shapes=_shapes(shapes, "verify", where, required=1),
        held_out_shapes=_shapes(shapes, "held_out", where, required=0),
        held_out_timed_shapes=_shapes(shapes, "held_out_timed", where, required=0),
        tolerance=tolerance,
        starting_kernel=Kernel(_read(kernel_file), _language_of(kernel_file)),
        flops=document.get("flops"),
        independent=_text(document, "independent", where, ""),
        deterministic=_truth(document, "deterministic", where),
        reference=code["reference"],
        make_inputs=code.get("make_inputs"),
        unanchored=unanchored,
        tolerances=tolerances,
        tolerances_at=tolerances_at,
        inputs_by=_text(document, "inputs_by", where, ""),
        numerics=_numerics(document, [tolerances.get(each.name, tolerance) for each in outputs], where),
    )
    _check_names(task, where)
    _check_inputs_by(task, where)
    _check_extents(task, where)
    _check_independent(task, where)
    check_tolerances_at(task.tolerances_at, task.shapes, where)
    return task


def _space_task(folder: Path, document: Mapping[str, Any], where: Path) -> Task:
    """A task whose kernels are configurations, never built or run."""
    unknown = sorted(document.keys() - {"name", "summary", "space"})
    if unknown:
        raise TaskError(f"{where} has the key '{unknown[0]}', which a recorded space has no use for.")
    space = _text(document, "space", where, "")
    if not _beside(where, "space", space).is_file():
        raise TaskError(f"{where}: 'space' must be the name of a file in {folder}, not {space!r}.")
    language = Language.CONFIGURATION
    return recorded_task(
        _name(document, folder, where),
        Kernel(_read(folder / f"kernel{language.suffix}"), language),
        folder=folder,
        summary=_text(document, "summary", where, ""),
        space=space,
    )


def task_of(spec: DeviceSpec) -> Task:
    """The task of a device, as its trial judges it. Raises TaskError."""
    task = load_task(spec.task_folder, spec.language)
    match spec.trial:
        case Trial.SEARCH:
            return task
        case Trial.LAST_GATE:
            return task.held_out
        case Trial.CHECK:
            return replace(task.held_out, search_shapes=task.held_out.verify_shapes[:1])


def languages(folder: Path) -> tuple[Language, ...]:
    """The languages that a task folder has a starting kernel in, besides one under another name."""
    return tuple(language for language in SOURCE_LANGUAGES if (folder / f"kernel{language.suffix}").is_file())


def _kernel_file(folder: Path, document: Mapping[str, Any], language: Language | None) -> Path:
    where = folder / "task.toml"
    name = _text(document, "kernel", where, "")
    if name:
        named = _beside(where, "kernel", name)
        if language in (None, _language_of(named)):
            return named
    if language is None:
        language = next(iter(languages(folder)), Language.CUDA)
    return folder / f"kernel{language.suffix}"


def _beside(where: Path, key: str, name: str) -> Path:
    """The file that a task file names: beside it and nowhere else, since a model may have written the name."""
    if Path(name).name != name or len(name) > MAX_NAME or not name.isprintable():
        raise TaskError(
            f"{where}: '{key}' must be the name of a file in {where.parent}, not {name[:MAX_NAME]!r}."
        )
    return where.parent / name


def _language_of(file: Path) -> Language:
    return Language.TRITON if file.suffix == Language.TRITON.suffix else Language.CUDA


def _check_independent(task: Task, where: Path) -> None:
    """The independent dimension is an extent of every output, as it stands, so that indices can be taken of it."""
    if not task.independent:
        return
    if any(task.independent not in shape for shape in task.search_shapes):
        raise TaskError(
            f"{where}: 'independent' is {task.independent!r}, which is no dimension of every shape."
        )
    for tensor in task.outputs:
        if tensor.shape.count(task.independent) != 1:
            raise TaskError(
                f"{where}: '{task.independent}' is said to be independent, but the output '{tensor.name}' doesn't "
                "have it as one of its extents."
            )


def _check_inputs_by(task: Task, where: Path) -> None:
    """What only tells inputs apart is a dimension of every shape, and an extent of nothing: kernels don't see it."""
    if not task.inputs_by:
        return
    if any(task.inputs_by not in shape for shape in task.shapes):
        raise TaskError(f"{where}: 'inputs_by' is {task.inputs_by!r}, which is no dimension of every shape.")
    for tensor in (*task.inputs, *task.outputs):
        if any(task.inputs_by in names_in(each) for each in (*tensor.shape, tensor.low, tensor.high)):
            raise TaskError(
                f"{where}: '{task.inputs_by}' only tells inputs apart, but '{tensor.name}' depends on it."
            )


def _check_names(task: Task, where: Path) -> None:
    dimensions = {name for shape in task.search_shapes for name in shape}
    known: dict[str, str] = {}
    for kind, names in (
        ("an input", [tensor.name for tensor in task.inputs]),
        ("an output", [tensor.name for tensor in task.outputs]),
        ("a scalar", list(task.scalars)),
        ("a dimension", sorted(dimensions)),
    ):
        for name in names:
            if name in task.in_place and kind == "an output":
                _check_in_place(task, name, where)
            elif name in known:
                raise TaskError(f"{where}: '{name}' is {known[name]} and {kind}; names must differ.")
            known[name] = kind


def _check_in_place(task: Task, name: str, where: Path) -> None:
    before, after = (
        next(each for each in tensors if each.name == name) for tensors in (task.inputs, task.outputs)
    )
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        raise TaskError(
            f"{where}: '{name}' is an input and an output, and so in place; both must have the same dtype and shape."
        )


def _check_extents(task: Task, where: Path) -> None:
    for shape in task.shapes:
        for tensor in (*task.inputs, *task.outputs):
            try:
                extents = tensor.extents(shape)
            except ExpressionError as error:
                raise TaskError(f"{where}: shape of '{tensor.name}': {error}") from error
            if any(extent < 1 for extent in extents):
                raise TaskError(
                    f"{where}: '{tensor.name}' has the shape {extents} at {shape_label(shape)}; "
                    "every extent must be at least 1."
                )
        for tensor in task.inputs:
            _check_limits(tensor, shape, f"{where}: [[inputs]] '{tensor.name}'")
        try:
            if task.flops is not None:
                evaluate(task.flops, {**task.scalars, **shape})
        except ExpressionError as error:
            raise TaskError(f"{where}: flops: {error}") from error


def _check_limits(tensor: Tensor, shape: Shape, what: str) -> None:
    try:
        low, high = tensor.limits(shape)
    except ExpressionError as error:
        raise TaskError(f"{what}: {error}") from error
    if not (math.isfinite(high - low) and low <= high):
        raise TaskError(
            f"{what}: at {shape_label(shape)} it would be drawn from {low:g} to {high:g}; "
            "both must be finite, 'low' first."
        )
    dtype = numpy_dtype(tensor.dtype)
    if not is_floating(dtype):
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low < least or high > most:
            raise TaskError(f"{what}: {low:g} to {high:g} doesn't fit {tensor.dtype}.")


def _check_links(folder: Path) -> None:
    """What a task shows to models and writes down is what its folder holds. An installation may be made of links."""
    if folder.is_relative_to(_SHIPPED):
        return
    try:
        stray = stray_link(folder)
    except OSError:
        return  # said of the file that is missing
    if stray is not None:
        raise TaskError(f"{stray} is a link that leads out of the task's folder: put the file itself there.")


def _document(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(_read(path))
    except DocumentError as error:
        raise TaskError(f"{path} {error}.") from error


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        # A pipe would be waited for.
        raise TaskError(f"{path} is not a file.")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise TaskError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as error:
        raise TaskError(f"{path} is missing.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} can't be read: {error}.") from error


def _reference_module(path: Path) -> dict[str, Any]:
    _read(path)
    try:
        code = runpy.run_path(str(path), run_name="mctskernel_reference")
    except (Exception, SystemExit) as error:
        raise TaskError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    if not callable(code.get("reference")):
        raise TaskError(f"{path} doesn't define a function called 'reference'.")
    return code


def _interpreted(path: Path) -> dict[str, Any]:
    """A reference that nobody vouches for, which is not run as Python."""
    try:
        return {"reference": InterpretedReference(_read(path))}
    except RefusedReferenceError as error:
        raise TaskError(
            f"{path}: {error} While task.toml says `unanchored = true`, only a small part of Python is understood: "
            "once you have read the reference and vouch for it, delete that line."
        ) from error


def _name(document: Mapping[str, Any], folder: Path, where: Path) -> str:
    name = _text(document, "name", where, folder.resolve().name)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise TaskError(f"{where}: the name {name!r} may hold letters, digits, '_', '-' and '.' only.")
    return name


def _text(document: Mapping[str, Any], key: str, where: Path, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise TaskError(f"{where}: '{key}' must be text.")
    return value


def _truth(document: Mapping[str, Any], key: str, where: Path) -> bool:
    value = document.get(key, False)
    if not isinstance(value, bool):
        raise TaskError(f"{where}: '{key}' must be true or false.")
    return value


def _tensors(document: Mapping[str, Any], key: str, where: Path) -> tuple[Tensor, ...]:
    entries = document.get(key)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise TaskError(f"{where} needs at least one [[{key}]] table.")
    tensors = tuple(_tensor(entry, f"{where}: [[{key}]]") for entry in entries)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise TaskError(f"{where}: two [[{key}]] tables have the same name.")
    return tensors


def _tensor(entry: Mapping[str, Any], what: str) -> Tensor:
    unknown = sorted(entry.keys() - {"name", "dtype", "shape", "distribution", "low", "high", "scales"})
    if unknown:
        raise TaskError(f"{what} has the unknown key '{unknown[0]}'.")
    name, dtype, shape = entry.get("name"), entry.get("dtype", "float32"), entry.get("shape")
    if not isinstance(name, str) or not name.isidentifier():
        raise TaskError(f"{what} needs a 'name' that is an identifier, not {name!r}.")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise TaskError(f"{what} '{name}': dtype {dtype!r} is not one of {', '.join(DTYPE_BYTES)}.")
    if not isinstance(shape, list) or not all(isinstance(extent, int | str) for extent in shape):
        raise TaskError(f"{what} '{name}' needs a 'shape', a list of numbers or expressions.")
    floating = is_floating(numpy_dtype(dtype))
    distribution = entry.get("distribution", "normal" if floating else "integers")
    if distribution not in DISTRIBUTIONS:
        raise TaskError(f"{what} '{name}': distribution must be one of {', '.join(DISTRIBUTIONS)}.")
    low, high = entry.get("low", 0.0), entry.get("high", _highest(dtype, distribution))
    if not all(_is_number(limit) or isinstance(limit, str) for limit in (low, high)):
        raise TaskError(f"{what} '{name}': 'low' and 'high' must be numbers or expressions.")
    try:
        scales = read_scales(entry["scales"], f"{what} '{name}'") if "scales" in entry else None
    except NumericsError as error:
        raise TaskError(str(error)) from error
    return Tensor(name, dtype, tuple(shape), distribution, low, high, scales)


def _highest(dtype: str, distribution: str) -> float:
    return 100.0 if distribution == "integers" and dtype != "bool" else 1.0


def _scalars(document: Mapping[str, Any], where: Path) -> dict[str, Number]:
    scalars = document.get("scalars", {})
    if not isinstance(scalars, dict) or not all(_is_number(value) for value in scalars.values()):
        raise TaskError(f"{where}: [scalars] must hold numbers.")
    return scalars


def _shapes(table: Mapping[str, Any], key: str, where: Path, *, required: int) -> tuple[Shape, ...]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or len(entries) < required:
        raise TaskError(f"{where}: [shapes] needs a list called '{key}' with at least one shape.")
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(value, int) and not isinstance(value, bool) for value in entry.values()
        ):
            raise TaskError(f"{where}: each shape in '{key}' must map dimensions to whole numbers.")
    return tuple(entries)


def _numerics(document: Mapping[str, Any], tolerances: Sequence[Tolerance], where: Path) -> Numerics:
    try:
        return read_numerics(
            document.get("numerics"), exact=all(each.relative == each.absolute == 0 for each in tolerances)
        )
    except NumericsError as error:
        raise TaskError(f"{where}: {error}") from error


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
