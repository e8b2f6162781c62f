"""A new task folder from a PyTorch function, which becomes its reference.

task.toml      inputs of the given shapes, and small shapes to verify at
reference.py   calls the function on the CPU, in 64-bit floats
function.py    a copy of the function's file, unless it is in a package
kernel.cu      plain CUDA C++

On a machine with a GPU start_torch_compile.py, or kernel.py without a plain kernel, is what torch.compile generates.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mctskernel.core.documents import unknown_name
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.core.task_file import write_new_task
from mctskernel.problems.host_code.expressions import TEMPLATES
from mctskernel.problems.tolerance import own_errors, tolerance_table
from mctskernel.problems.torch_dimensions import awkward_shapes, find_dimensions, parse_shape
from mctskernel.problems.torch_task import (
    TorchTask,
    called,
    drawn_tensors,
    independent_dimension,
    output_tensors,
    starting_kernels,
    task_toml,
)
from mctskernel.tasks.template import Drafted

if TYPE_CHECKING:  # which imports PyTorch
    from mctskernel.problems.launchers.recording import Recorded

_DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "int": "int32",
    "long": "int64",
}

MOST_BYTES = 1 << 26  # of a shape to verify at, if the task's own isn't larger
_FAILURES = (Exception, SystemExit)  # what the user's code may raise


def create_task_from_torch(
    folder: Path,
    function: str,
    shapes: Sequence[str],
    dtypes: Sequence[str],
    language: Language | None = None,
    *,
    launcher: str = "",
) -> Drafted:
    """Write a task folder for `package.module:function` with tensors of these shapes, one for each parameter.

    Imports the user's code. One dtype serves all tensors. The starting kernels are those of
    `torch_task.starting_kernels`, or the Triton kernels that `launcher`, a function of the same tensors, launches.
    Raises TaskError before anything is written.
    """
    try:
        import torch  # noqa: F401, PLC0415 - an extra

        if launcher:
            from mctskernel.problems import launchers  # noqa: PLC0415 - imports PyTorch and Triton, extras
    except ImportError as error:
        needed = "--triton needs PyTorch and Triton" if launcher else "--from-torch needs PyTorch"
        raise TaskError(f"{needed}, which isn't installed: mctskernel[gpu].") from error
    package = function.partition(":")[0].partition(".")[0]
    installed = bool(package) and importlib.util.find_spec(package) is not None
    if launcher:
        with launchers.machine():
            module, found, launches = *_imported(function), _imported(launcher)[1]
        record = partial(launchers.recorded, launches)
    else:
        module, found = _imported(function)
    copied = _copied_source(module)
    parameters = _tensor_parameters(found, len(shapes), function)
    named = dict(zip(parameters, shapes, strict=True))
    if launcher:
        task, starts = launchers.launched_task(
            launches,
            lambda constants: _task(function, found, named, dtypes, record=record, constants=constants),
        )
    else:
        task = _task(function, found, named, dtypes)
        starts = starting_kernels(task, language)
    folders = () if installed or copied else (Path.cwd(),)
    reference = TEMPLATES.get_template("from_torch.txt").render(
        name=function,
        where='str(Path(__file__).with_name("function.py"))' if copied else f'"{module.__name__}"',
        is_copied=bool(copied),
        folders=[repr(str(each)) for each in folders],
        parameters=", ".join(parameters),
        function=function.partition(":")[2],
    )
    guessed = "guessed: the largest valid value"
    toml = re.sub(r"^(high = .*)$", rf"\1 # {guessed}", task_toml(task), flags=re.MULTILINE)
    of_row = "relative to a row's largest value"
    toml = re.sub(r"^(relative = .*)$", rf"\1 # {of_row}", toml, count=1, flags=re.MULTILINE)
    files = {"task.toml": toml, "reference.py": reference}
    files |= {"function.py": copied} if copied else {}
    files |= starts.files
    write_new_task(folder, files)
    where = f"{package} isn't installed: reference.py finds it in {Path.cwd()}."
    return Drafted(files, (*([where] if folders else []), *starts.notes))


def _task(
    name: str,
    function: Callable[..., Any],
    shapes: Mapping[str, str],
    dtypes: Sequence[str],
    *,
    record: Callable[[Sequence[Tensor], Shape], Recorded] | None = None,
    constants: Collection[str] = (),
) -> TorchTask:
    """The task of a function, whose tensor parameters have these shapes; without its reference.

    Sizes vary, but for `constants`, as the function lets them and the launcher whose calls `record` gives. Shapes are
    those at which it launches the same kernels as at the sizes: a plan has no choice of kernels.
    """
    types = _expanded([_DTYPES.get(each, each) for each in dtypes], len(shapes))

    def inputs_of(extents: Sequence[Sequence[str | int]]) -> tuple[Tensor, ...]:
        last = extents[0][-1] if extents[0] else 1
        return tuple(
            _input(parameter, dtype, tuple(each) or (1,), last)
            for parameter, dtype, each in zip(shapes, types, extents, strict=True)
        )

    def works(extents: Sequence[Sequence[str | int]], sizes: Shape) -> bool:
        try:
            called(function, inputs_of(extents), sizes, "meta")
            recorded = record(inputs_of(extents), sizes).kernels if record else []
        except _FAILURES as error:
            failures.append(error)
            return False
        return kernels in ([], recorded)

    def wide(shape: Shape) -> dict[str, Any]:
        drawn = drawn_tensors(inputs, shape, "cpu")
        return {name: each.double() if each.is_floating_point() else each for name, each in drawn.items()}

    kernels: list[Any] = []
    failures: list[BaseException] = []
    try:
        dimensions = find_dimensions([parse_shape(text) for text in shapes.values()], works)
    except TaskError as error:
        raise TaskError(_failed(name, function, failures[0])) if failures else error from error
    dimensions = dimensions.restricted([name for name in dimensions.sizes if name not in constants])
    inputs = inputs_of(dimensions.extents)
    outputs = output_tensors(function, inputs, dimensions.sizes, dimensions.granularity)
    if record is not None:
        launched = record(inputs, dimensions.sizes)
        kernels = launched.kernels
        in_place = dict(enumerate(tensor.name for tensor in inputs))
        pairs = zip(outputs, launched.returned, strict=False)
        outputs = tuple(replace(each, name=in_place.get(number, each.name)) for each, number in pairs)

    def is_small(shape: Shape) -> bool:
        size, own = (sum(each.nbytes(at) for each in (*inputs, *outputs)) for at in (shape, dimensions.sizes))
        return size <= max(MOST_BYTES, own)

    verify, held_out = awkward_shapes(
        dimensions, lambda shape: is_small(shape) and works(dimensions.extents, shape)
    )
    narrow = any(tensor.dtype in {"float16", "bfloat16"} for tensor in outputs)
    drawn = (drawn_tensors(inputs, shape, "cpu") for shape in (*verify, *held_out))
    try:
        own = own_errors(function, drawn, outputs) if narrow else {}
    except _FAILURES as error:
        raise TaskError(_failed(name, function, error)) from error
    return TorchTask(
        name="",
        summary=f"{name}, from PyTorch.",
        function=function,
        inputs=inputs,
        outputs=outputs,
        search=(dimensions.sizes,),
        verify=verify,
        held_out=held_out,
        granularity=dimensions.granularity,
        tolerance=tolerance_table(outputs, own, ()),
        independent=independent_dimension(function, wide, inputs, outputs, dimensions.granularity),
        reference="",
    )


def _failed(name: str, function: Callable[..., Any], error: BaseException) -> str:
    """What a call of the user's function raised, with the last line of its file that was being run."""
    if isinstance(error, TaskError):
        return str(error)
    file = inspect.getfile(function)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    where = f" ({file}, line {lines[-1]})" if lines else ""
    return f"{name} fails with tensors of these shapes and dtypes{where}: {type(error).__name__}: {error}"


def _input(name: str, dtype: str, extents: tuple[str | int, ...], last: str | int) -> Tensor:
    """An input. Integers of 8 bits are booleans; wider ones are taken for indices of the first tensor's last axis."""
    if "float" in dtype:
        return Tensor(name, dtype, extents)
    high = 1 if DTYPE_BYTES[dtype] == 1 else f"{last} - 1" if isinstance(last, str) else last - 1
    return Tensor(name, dtype, extents, "integers", 0, high)


def _imported(text: str) -> tuple[Any, Callable[..., Any]]:
    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name.isidentifier()):
        raise TaskError(f"{text!r} names no function; write package.module:function.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except _FAILURES as error:
        raise TaskError(f"{module_name} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [each for each, value in vars(module).items() if inspect.isroutine(value)]
        raise TaskError(unknown_name(name, functions, f"function in {module_name} called"))
    return module, function


def _tensor_parameters(function: Callable[..., Any], count: int, name: str) -> tuple[str, ...]:
    parameters = list(inspect.signature(function).parameters.values())
    plain = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if not count or count > len(plain) or len(required) > count:
        raise TaskError(
            f"{name} takes {', '.join(p.name for p in parameters) or 'nothing'}: give a --shape for each tensor, in "
            "this order. Other parameters need defaults."
        )
    return tuple(parameter.name for parameter in plain[:count])


def _expanded(dtypes: Sequence[str], count: int) -> tuple[str, ...]:
    unknown = [dtype for dtype in dtypes if dtype not in DTYPE_BYTES]
    if unknown:
        raise TaskError(unknown_name(unknown[0], (*DTYPE_BYTES, *_DTYPES), "dtype"))
    if len(dtypes) not in {1, count}:
        raise TaskError(f"{len(dtypes)} dtypes for {count} tensors: give one for all, or one for each.")
    return tuple(dtypes) if len(dtypes) == count else tuple(dtypes) * count


def _copied_source(module: Any) -> str:
    """The text of the module's file if it is outside of a package, else empty."""
    if module.__package__ or module.__name__ == "__main__":
        return ""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""
