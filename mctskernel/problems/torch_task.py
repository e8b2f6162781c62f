"""A PyTorch function of named tensors as a task folder: inputs, reference, tolerance and a starting kernel.

All readers of problems end here: they make a `TorchTask`, and `problem_of` writes its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import tomlkit

from mctskernel.core.documents import indented_json
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Language
from mctskernel.core.task import Operator, Precision, Shape, TaskError, Tensor
from mctskernel.problems.distinct_sizes import Names, distinct_sizes
from mctskernel.problems.host_code.expressions import TEMPLATES, docstring
from mctskernel.problems.inductor.generated import InductorError
from mctskernel.problems.inductor.start import compiled_start
from mctskernel.problems.plain_cuda import PlainCudaError
from mctskernel.problems.problem import PROBLEM_FILE, Problem
from mctskernel.problems.templates import kernel_sources
from mctskernel.problems.torch_reference import dtype_name
from mctskernel.profiling.devices import default_kind
from mctskernel.tasks.template import Drafted

_FIRST_WITH_TF32 = (8, 0)

Called = Callable[..., Any]
"""Takes tensors in the order of a task's inputs, on any device, and returns a tensor or a tuple of them."""


@dataclass(frozen=True)
class TorchTask:
    """The content of a task folder.

    `function` takes the inputs in their order. `search` are the shapes to optimise for, each with every dimension.
    `granularity` is the number that a dimension's size must be a multiple of, where that isn't 1. `tolerance` is the
    table of task.toml, `reference` the text of reference.py, and `own_files` further files that the reference reads.
    `inputs_by` is a dimension that only selects inputs, if there is one; kernels don't see it. `problem` is what
    `PROBLEM_FILE` holds, `notes` are for the user.
    """

    name: str
    summary: str
    function: Called
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    search: tuple[Shape, ...]
    verify: tuple[Shape, ...]
    reference: str
    held_out: tuple[Shape, ...] = ()
    granularity: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, int | float] = field(default_factory=dict)
    tolerance: Mapping[str, Any] = field(default_factory=dict)
    independent: str = ""
    own_files: Mapping[str, bytes] = field(default_factory=dict)
    inputs_by: str = ""
    precision: Precision = Precision.LOCKED
    problem: msgspec.Struct | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def tf32(self) -> frozenset[Operator]:
        """The operators of the function that PyTorch itself computes in TF32, with its settings, on this machine's GPU.

        Without a GPU, on one that has TF32. Nothing for other types than float32.
        """
        import torch  # noqa: PLC0415 - an extra

        from mctskernel.profiling.torch_rounding import TF32Products  # noqa: PLC0415 - imports PyTorch, an extra

        if all(tensor.dtype != "float32" for tensor in self.inputs):
            return frozenset()
        if torch.cuda.is_available() and torch.cuda.get_device_capability() < _FIRST_WITH_TF32:
            return frozenset()
        allowed = {
            Operator.CONVOLUTION: torch.backends.cudnn.allow_tf32,
            Operator.MATMUL: torch.backends.cuda.matmul.allow_tf32,
        }
        products = TF32Products({operator for operator, is_allowed in allowed.items() if is_allowed}, None)
        with suppress(Exception), products:  # a function may raise anything on tensors without values
            called(self.function, self.inputs, self.sizes, "meta")
        return frozenset(products.found)

    @property
    def sizes(self) -> dict[str, int]:
        """The first search shape, as kernels see it."""
        return {name: size for name, size in self.search[0].items() if name != self.inputs_by}

    @property
    def distinct(self) -> dict[str, int]:
        """Sizes by which the dimensions can be recognised in generated code."""
        return distinct_sizes(self.sizes, self.granularity)


def problem_of(benchmark: str, task: TorchTask, language: Language | None = None) -> Problem:
    """The files of a problem's task with its starting kernels; without any, the last note says why."""
    assert task.problem is not None  # noqa: S101 - the readers of benchmarks give it
    files = {
        **task.own_files,
        PROBLEM_FILE: indented_json(task.problem),
        "task.toml": task_toml(task).encode(),
        "reference.py": task.reference.encode(),
    }
    starts = starting_kernels(task, language)
    files |= {name: text.encode() for name, text in starts.files.items()}
    return Problem(benchmark, task.name, files, (*task.notes, *starts.notes))


def reference_text(
    about: str,
    module: str,
    inputs: Sequence[str],
    dimensions: Sequence[str],
    *,
    sees_shape: bool = False,
    makes_inputs: bool,
) -> str:
    """The text of a reference.py that calls `call_reference` and `make_problem_inputs` of a module."""
    shape = [f"{name}={name}" for name in dimensions]
    return TEMPLATES.get_template("reference.txt").render(
        docstring=docstring(about),
        module=module,
        makes_inputs=makes_inputs,
        parameters=[*inputs, *(dimensions if sees_shape else ())],
        given=["FOLDER", *inputs, *(shape if sees_shape else ())],
        dimensions=["rng", *dimensions],
        shape=["FOLDER", "rng", *shape],
    )


COMPILED_START = "start_torch_compile.py"
NO_START = "There is no starting kernel"  # how a note begins that says why


def starting_kernels(task: TorchTask, language: Language | None = None) -> Drafted:
    """The starting kernels of a task, in one language or in every one that this machine can make them in.

    Notes say why others are missing.

    In CUDA C++ these are a plain kernel and one made of templates, and where that has reductions in epilogues another
    one without, all made without a GPU; in Triton it is what torch.compile generates for this machine's GPU. The first
    is what the search's tree begins with, the others are further starting points, which it verifies first.
    """
    files, missing = {}, []
    if language is not Language.TRITON:
        try:
            names = [tensor.name for tensor in task.outputs]
            made = kernel_sources(task.function, task.inputs, names, task.distinct, task.sizes)
            files["kernel.cu"] = made.plain
            others = {"templates": made.templates, "reordered": made.reordered, "separate": made.separate}
            files |= {f"start_{name}.cu": text for name, text in others.items() if text}
            if made.failure:
                missing.append(f"A start from templates is missing: {made.failure}")
        except PlainCudaError as error:
            missing.append(f"{NO_START} in CUDA C++: {error}")
    if language is Language.TRITON or (language is None and default_kind() == "gpu"):
        try:
            files[COMPILED_START if files else "kernel.py"] = compiled_start(
                task.function,
                task.inputs,
                sizes=task.sizes,
                distinct=task.distinct,
                outputs=[tensor.name for tensor in task.outputs],
                name=task.name or task.summary,
                tf32=Operator.CONVOLUTION in task.tf32,
            )
        except (InductorError, PlainCudaError) as error:
            missing.append(f"{NO_START} in Triton from torch.compile: {error}")
    return Drafted(files, tuple(missing))


def task_toml(task: TorchTask) -> str:
    document = tomlkit.document()
    words = {
        "name": task.name,
        "summary": task.summary,
        "independent": task.independent,
        "inputs_by": task.inputs_by,
        "precision": "" if task.precision is Precision.LOCKED else task.precision.value,
        "inputs": [_tensor_table(tensor, drawn=True) for tensor in task.inputs],
        "outputs": [_tensor_table(tensor, drawn=False) for tensor in task.outputs],
        "scalars": dict(task.scalars),
    }
    for key, value in words.items():
        if value:
            document.add(key, tomlkit.item(value))
    shapes = tomlkit.table()
    for key, listed in (("search", task.search), ("verify", task.verify), ("held_out", task.held_out)):
        if listed:
            shapes.add(key, _shape_list(listed))
    document.add("shapes", shapes)
    if task.tolerance:
        document.add("tolerance", tomlkit.item(dict(task.tolerance)))
    if task.tf32:
        document.add("numerics", tomlkit.item({"tf32": sorted(task.tf32)}))
    return tomlkit.dumps(document)


def output_tensors(
    function: Called, inputs: Sequence[Tensor], sizes: Shape, granularity: Mapping[str, int]
) -> tuple[Tensor, ...]:
    """The outputs of a function, with extents as expressions over the dimensions, found on `meta` tensors.

    They are called `out`, or `out0`, `out1`, ... Raises TaskError for a result that isn't tensors.
    """
    distinct = distinct_sizes(sizes, granularity)
    names = Names(distinct, granularity)
    given = listed(called(function, inputs, distinct, "meta"))
    found = tuple(
        Tensor(
            "out" if len(given) == 1 else f"out{number}",
            dtype_name(tensor),
            tuple(names.expression(size) or size for size in tensor.shape) or (1,),
        )
        for number, tensor in enumerate(given)
    )
    others = [{name: 3 * granularity.get(name, 1) for name in sizes}, sizes]
    return (
        found
        if extents_agree(function, inputs, found, others)
        else _traced_extents(function, inputs, found, distinct)
    )


def extents_agree(
    function: Called, inputs: Sequence[Tensor], outputs: Sequence[Tensor], shapes: Sequence[Shape]
) -> bool:
    """Whether a function runs at each of the shapes, and its results have the extents of the outputs."""
    for shape in shapes:
        try:
            given = listed(called(function, inputs, shape, "meta"))
            expected = [tensor.extents(shape) for tensor in outputs]
        except (TaskError, ArithmeticError, RuntimeError, ValueError, TypeError, IndexError):
            return False
        if [tuple(each.shape) or (1,) for each in given] != expected:
            return False
    return True


def independent_dimension(
    function: Called,
    values: Callable[[Shape], Mapping[str, Any]],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    granularity: Mapping[str, int],
    *,
    can_run: Callable[[Shape], bool] = lambda _: True,
) -> str:
    """A batch dimension: one of every output along which slices are computed independently; empty if there is none.

    Tested on numbers. `values` gives real tensors at a shape, by the names of the inputs. `can_run` says where that and
    a call cost little.
    """
    for name, grain in granularity.items():
        if grain != 1 or not all(each.shape.count(name) == 1 for each in outputs):
            continue
        shapes = [{each: count * size for each, size in granularity.items()} | {name: 7} for count in (6, 1)]
        shape = next(filter(can_run, shapes), None)
        if shape is None:
            continue
        try:
            independent = all(
                _is_independent(function, values(shape), (inputs, outputs), name, chosen)
                for chosen in ([0, 2, 3], [6], [5, 1])
            )
        except (RuntimeError, ValueError, IndexError):
            continue
        if independent:
            return name
    return ""


def called(function: Called, inputs: Sequence[Tensor], shape: Shape, device: str, seed: int = 0) -> Any:
    """The result of a function for fresh tensors at a shape; `meta` tensors hold no values."""
    import torch  # noqa: PLC0415 - an extra

    with torch.no_grad():
        return function(*drawn_tensors(inputs, shape, device, seed).values())


def drawn_tensors(inputs: Sequence[Tensor], shape: Shape, device: str, seed: int = 0) -> dict[str, Any]:
    """Random tensors by the names of the inputs, with the task's distributions."""
    import torch  # noqa: PLC0415 - an extra

    torch.manual_seed(seed)
    found = {}
    for tensor in inputs:
        extents, dtype = tensor.extents(shape), getattr(torch, tensor.dtype)
        if device == "meta":
            found[tensor.name] = torch.empty(extents, dtype=dtype, device=device)
            continue
        low, high = tensor.limits(shape)
        if tensor.distribution == "integers":
            found[tensor.name] = torch.randint(int(low), int(high) + 1, extents, device=device).to(dtype)
        elif tensor.distribution == "uniform":
            found[tensor.name] = (torch.rand(extents, device=device) * (high - low) + low).to(dtype)
        elif not dtype.is_floating_point:
            # Made by code, and 0 is an index.
            found[tensor.name] = torch.zeros(extents, dtype=dtype, device=device)
        else:
            found[tensor.name] = torch.randn(extents, device=device).to(dtype)
    return found


def listed(result: object) -> list[Any]:
    """The tensors of a function's result. Raises TaskError for anything else."""
    import torch  # noqa: PLC0415 - an extra

    given: list[Any] = list(result) if isinstance(result, tuple | list) else [result]
    strange = [each for each in given if not isinstance(each, torch.Tensor)]
    if strange or not given:
        what = type(strange[0]).__name__ if strange else "nothing"
        raise TaskError(f"It returns {what}; a tensor or a tuple of tensors is needed.")
    unknown = [dtype_name(each) for each in given if dtype_name(each) not in DTYPE_BYTES]
    if unknown:
        raise TaskError(f"It returns a tensor of {unknown[0]}, which isn't supported.")
    return given


def _traced_extents(
    function: Called, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Shape
) -> tuple[Tensor, ...]:
    """The outputs with extents from PyTorch's symbolic shapes; unchanged where there are none."""
    from mctskernel.problems.plain_cuda.extents import in_plan  # noqa: PLC0415 - imports PyTorch
    from mctskernel.problems.plain_cuda.tracing import trace  # noqa: PLC0415 - as above

    try:
        traced = trace(function, inputs, sizes)
        shapes = [
            tuple(in_plan(traced.expression(size)) for size in node.meta["val"].shape)
            for node in traced.outputs
        ]
    except PlainCudaError:
        return tuple(outputs)
    return tuple(replace(each, shape=shape or (1,)) for each, shape in zip(outputs, shapes, strict=True))


def _is_independent(
    function: Called,
    values: Mapping[str, Any],
    tensors: tuple[Sequence[Tensor], Sequence[Tensor]],
    name: str,
    chosen: list[int],
) -> bool:
    """Whether a slice of the inputs gives the same slice of the outputs."""
    import torch  # noqa: PLC0415 - an extra

    inputs, outputs = tensors
    parts = [_part(values[each.name], each, name, chosen) for each in inputs]
    with torch.no_grad():
        whole, part = listed(function(*values.values())), listed(function(*parts))
    return all(
        _part(each, tensor, name, chosen).allclose(found, rtol=1e-4, atol=1e-5, equal_nan=True)
        for each, found, tensor in zip(whole, part, outputs, strict=True)
    )


def _part(value: Any, tensor: Tensor, name: str, chosen: list[int]) -> Any:
    """The elements at some indices of a dimension, on every axis that has it."""
    import torch  # noqa: PLC0415 - an extra

    for axis, extent in enumerate(tensor.shape):
        if extent == name:
            value = value.index_select(axis, torch.tensor(chosen))
    return value


def _tensor_table(tensor: Tensor, *, drawn: bool) -> dict[str, Any]:
    table: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    if drawn and tensor.distribution != "normal":
        table |= {"distribution": tensor.distribution, "low": tensor.low, "high": tensor.high}
    if drawn and tensor.scales is not None:
        table["scales"] = list(tensor.scales)
    return table


def _shape_list(shapes: Sequence[Shape]) -> Any:
    array = tomlkit.array()
    for shape in shapes:
        entry = tomlkit.inline_table()
        entry.update(shape)
        array.append(entry)
    return array.multiline(multiline=len(shapes) > 1)
