"""A computation of PyTorch, on tensors that have names, as the files of a task folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import tomlkit

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.inductor.generated import InductorError
from mctskernel.inductor.sizes import Names, distinct_sizes
from mctskernel.inductor.start import compiled_start
from mctskernel.plain_cuda import PlainCudaError, kernel_source
from mctskernel.problems.problem import PROBLEM_FILE, Problem, record_text

Called = Callable[..., Any]
"""Takes tensors in the order of a task's inputs, wherever they are, and gives a tensor or a tuple of them."""


@dataclass(frozen=True)
class TorchTask:
    """What a task folder is made of.

    `function` takes the inputs in their order. `search` are the shapes that count, each with every dimension in it.
    `granularity` says what a dimension's size must be a multiple of, where that isn't 1. `tolerance` is the table of
    task.toml, `reference` the text of reference.py, and `beside` what else the folder holds, which the reference reads.
    `inputs_by` is the dimension that only tells inputs apart, if there is one: a kernel isn't made for it.
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
    beside: Mapping[str, bytes] = field(default_factory=dict)
    inputs_by: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """The first shape that counts, as kernels see it."""
        return {name: size for name, size in self.search[0].items() if name != self.inputs_by}

    @property
    def distinct(self) -> dict[str, int]:
        """Sizes that tell the dimensions from each other and from everything else."""
        return distinct_sizes(self.sizes, self.granularity)


@dataclass(frozen=True)
class Draft:
    """A task before its files are written, what `PROBLEM_FILE` is to say of it, and sentences for its user."""

    task: TorchTask
    problem: msgspec.Struct
    remarks: tuple[str, ...]


def problem_of(benchmark: str, draft: Draft, language: Language) -> Problem:
    """A draft with its files, and a starting kernel in the language; the last remark says why where there is none."""
    task = draft.task
    source, without_kernel = starting_kernel(task, language)
    files = {
        **task.beside,
        PROBLEM_FILE: record_text(draft.problem),
        "task.toml": task_toml(task).encode(),
        "reference.py": task.reference.encode(),
    }
    if not source:
        return Problem(benchmark, task.name, files, (*draft.remarks, without_kernel))
    files[f"kernel{language.suffix}"] = source.encode()
    return Problem(benchmark, task.name, files, draft.remarks)


def starting_kernel(task: TorchTask, language: Language) -> tuple[str, str]:
    """A kernel's source, or an empty text and the sentence that says why there is none.

    In CUDA C++ it is a plain one, made without a GPU; in Triton what torch.compile generates on this machine's GPU.
    """
    if language is Language.TRITON:
        try:
            return _compiled(task), ""
        except InductorError as error:
            return "", f"There is no starting kernel in Triton from torch.compile: {error}"
    names = [tensor.name for tensor in task.outputs]
    try:
        return kernel_source(task.function, task.inputs, names, task.distinct), ""
    except PlainCudaError as error:
        return "", f"There is no starting kernel in CUDA C++: {error}"


def task_toml(task: TorchTask) -> str:
    """The text of task.toml."""
    document = tomlkit.document()
    document.add("name", tomlkit.item(task.name))
    document.add("summary", tomlkit.item(task.summary))
    if task.independent:
        document.add("independent", tomlkit.item(task.independent))
    if task.inputs_by:
        document.add("inputs_by", tomlkit.item(task.inputs_by))
    for key, tensors in (("inputs", task.inputs), ("outputs", task.outputs)):
        tables = tomlkit.aot()
        for tensor in tensors:
            tables.append(_tensor_table(tensor, drawn=key == "inputs"))
        document.add(key, tables)
    if task.scalars:
        document.add("scalars", tomlkit.item(dict(task.scalars)))
    shapes = tomlkit.table()
    for key, listed in (("search", task.search), ("verify", task.verify), ("held_out", task.held_out)):
        if listed:
            shapes.add(key, shape_list(listed))
    document.add("shapes", shapes)
    if task.tolerance:
        document.add("tolerance", tomlkit.item(dict(task.tolerance)))
    return tomlkit.dumps(document)


def output_tensors(
    function: Called, inputs: Sequence[Tensor], sizes: Shape, granularity: Mapping[str, int]
) -> tuple[Tensor, ...]:
    """The outputs of a function, their extents as expressions over the dimensions, found without allocating anything.

    They are called `out`, or `out0`, `out1`, ... Raises TaskError where it gives something else than tensors.
    """
    distinct = distinct_sizes(sizes, granularity)
    names = Names(distinct, granularity)
    given = listed(called(function, inputs, distinct, "meta"))
    found = tuple(
        Tensor(
            "out" if len(given) == 1 else f"out{number}",
            str(tensor.dtype).removeprefix("torch."),
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
    """Whether a function runs at each of the shapes, and gives tensors with the extents of the outputs."""
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
) -> str:
    """A dimension of every output along which nothing depends on anything else, as some numbers show; empty if none.

    `values` gives real tensors at a shape, by the names of the inputs.
    """
    for name, grain in granularity.items():
        if grain != 1 or not all(each.shape.count(name) == 1 for each in outputs):
            continue
        shape = {each: 6 * size for each, size in granularity.items()} | {name: 7}
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
    """What a function gives for fresh tensors at a shape; on `meta` they hold nothing and cost nothing."""
    import torch  # noqa: PLC0415 - an extra

    with torch.no_grad():
        return function(*drawn_tensors(inputs, shape, device, seed).values())


def drawn_tensors(inputs: Sequence[Tensor], shape: Shape, device: str, seed: int = 0) -> dict[str, Any]:
    """Tensors by the names of the inputs, drawn as a task draws them, though not the same numbers."""
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
        else:
            found[tensor.name] = torch.randn(extents, device=device).to(dtype)
    return found


def listed(result: object) -> list[Any]:
    """The tensors that a function gave. Raises TaskError for anything else."""
    import torch  # noqa: PLC0415 - an extra

    given: list[Any] = list(result) if isinstance(result, tuple | list) else [result]
    strange = [each for each in given if not isinstance(each, torch.Tensor)]
    if strange or not given:
        what = type(strange[0]).__name__ if strange else "nothing"
        raise TaskError(f"It gives {what} where a tensor, or a tuple of tensors, is needed.")
    unknown = [str(each.dtype) for each in given if str(each.dtype).removeprefix("torch.") not in DTYPE_BYTES]
    if unknown:
        raise TaskError(f"It gives a tensor of {unknown[0].removeprefix('torch.')}, which no output can be.")
    return given


def _traced_extents(
    function: Called, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Shape
) -> tuple[Tensor, ...]:
    """The outputs with extents as PyTorch's own arithmetic of sizes has them; unchanged where it has none."""
    from mctskernel.plain_cuda.error import PlainCudaError  # noqa: PLC0415 - imports PyTorch
    from mctskernel.plain_cuda.extents import in_plan  # noqa: PLC0415 - as above
    from mctskernel.plain_cuda.tracing import trace  # noqa: PLC0415 - as above

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
    """Whether a part of the inputs gives the same part of the outputs."""
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
    """The elements at some indices of a dimension, wherever a tensor has it."""
    import torch  # noqa: PLC0415 - an extra

    for axis, extent in enumerate(tensor.shape):
        if extent == name:
            value = value.index_select(axis, torch.tensor(chosen))
    return value


def _compiled(task: TorchTask) -> str:
    return compiled_start(
        task.function,
        lambda shape: drawn_tensors(task.inputs, shape, "cuda"),
        sizes=task.sizes,
        distinct=task.distinct,
        granularity=task.granularity,
        outputs=[tensor.name for tensor in task.outputs],
        name=task.name,
    ).source


def _tensor_table(tensor: Tensor, *, drawn: bool) -> Any:
    table = tomlkit.table()
    table.add("name", tensor.name)
    table.add("dtype", tensor.dtype)
    table.add("shape", list(tensor.shape))
    if drawn and tensor.distribution != "normal":
        table.add("distribution", tensor.distribution)
        table.add("low", tensor.low)
        table.add("high", tensor.high)
    if drawn and tensor.scales is not None:
        table.add("scales", list(tensor.scales))
    return table


def shape_list(shapes: Sequence[Shape]) -> Any:
    """Shapes as task.toml lists them, several each on a line of its own."""
    array = tomlkit.array()
    for shape in shapes:
        entry = tomlkit.inline_table()
        entry.update(shape)
        array.append(entry)
    return array.multiline(multiline=len(shapes) > 1)
