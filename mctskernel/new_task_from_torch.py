"""A new task folder from a function of PyTorch: the function is its reference, and its kernel is made of it.

task.toml      inputs of the given shapes, awkward shapes to verify at
reference.py   calls the function on the CPU, in 64-bit floats
function.py    a copy of the file that the function is in, where that is no part of a package
kernel.py      what torch.compile generates, as a candidate; only on a machine with a GPU
kernel.cu      plain CUDA C++ elsewhere, and wherever torch.compile's can't be one
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit

from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.kernel import Language
from mctskernel.core.task import Shape, TaskError, Tensor
from mctskernel.inductor.generated import InductorError
from mctskernel.inductor.sizes import Names
from mctskernel.inductor.start import compiled_start
from mctskernel.plain_cuda import PlainCudaError, kernel_source
from mctskernel.problems.torch_task import shape_list
from mctskernel.torch_dimensions import awkward_shapes, find_dimensions, parse_shape

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

_TOLERANCES: Mapping[str, tuple[float, float, float]] = {
    "float64": (1e-12, 1e-13, 64.0),
    "float32": (1e-5, 1e-6, 64.0),
    "float16": (5.2e-4, 1e-6, 16.0),
    "bfloat16": (4.1e-3, 1e-6, 16.0),
}
"""Relative and absolute tolerance and ratio: one rounding to 16 bits, or sums of some thousand 32-bit floats."""


@dataclass(frozen=True)
class FromTorch:
    """What was made: files by name, and in a sentence why none is torch.compile's kernel (empty if one is).

    `without_kernel` says, in another one, why there is no plain kernel in its place, where that was tried.
    `run` calls what torch.compile made on tensors of the given shapes, for whoever wants to time it; None without a
    GPU. `generated` is torch.compile's own text, for these sizes and for those that tell dimensions apart.
    `uninstalled` is the function's package where it was found only because it is in the current folder, else empty.
    """

    files: Mapping[str, str]
    problem: str = ""
    without_kernel: str = ""
    run: Callable[[], object] | None = None
    generated: Mapping[str, str] = field(default_factory=dict)
    uninstalled: str = ""


def create_task_from_torch(
    folder: Path,
    function: str,
    shapes: Sequence[str],
    dtypes: Sequence[str],
    language: Language | None = None,
) -> FromTorch:
    """Make a task folder for `package.module:function` with tensors of these shapes, one for each parameter.

    Imports the user's code. One dtype serves all tensors. The starting kernel is in the language, or, where none is
    given, what torch.compile generates if that can be, and plain CUDA C++ if not. Raises TaskError, before anything is
    written.
    """
    if (folder / "task.toml").exists():
        raise TaskError(f"{folder / 'task.toml'} exists; a new task overwrites nothing.")
    drafted = _Draft(function, shapes, dtypes)
    files = {"task.toml": drafted.task_toml(), **drafted.reference_files()}
    problem, without_kernel = "", ""
    if language is Language.CUDA:
        problem = "CUDA C++ was asked for."
    else:
        try:
            files["kernel.py"] = drafted.kernel()
        except InductorError as error:
            problem = str(error)
    if problem and language is not Language.TRITON:
        try:
            files["kernel.cu"] = drafted.plain_kernel()
        except PlainCudaError as error:
            without_kernel = str(error)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise TaskError(f"{folder} can't be written: {error.strerror or error}.") from error
    return FromTorch(files, problem, without_kernel, drafted.run, drafted.generated, drafted.uninstalled)


class _Draft:
    """A function with its tensors, looked at without a GPU."""

    def __init__(self, function: str, shapes: Sequence[str], dtypes: Sequence[str]) -> None:
        try:
            import torch  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise TaskError("--from-torch needs PyTorch, which isn't installed: mctskernel[gpu].") from error
        self._name = function
        package = function.partition(":")[0].partition(".")[0]
        installed = bool(package) and importlib.util.find_spec(package) is not None
        self._module, self._function = _found(function)
        self.uninstalled = "" if installed or _copied_source(self._module) else package
        self._parameters = _tensor_parameters(self._function, len(shapes), function)
        self._dtypes = _expanded([_DTYPES.get(each, each) for each in dtypes], len(shapes))
        self.dimensions = find_dimensions([parse_shape(text) for text in shapes], self._works)
        self._outputs = self._output_tensors()
        self.run: Callable[[], object] | None = None
        self.generated: Mapping[str, str] = {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        count = len(self._outputs)
        return ("out",) if count == 1 else tuple(f"out{number}" for number in range(count))

    def kernel(self) -> str:
        """What torch.compile generates. Raises InductorError."""
        dimensions = self.dimensions
        start = compiled_start(
            self._function,
            lambda shape: self._tensors("cuda", shape),
            sizes=dimensions.sizes,
            distinct=dimensions.distinct,
            granularity=dimensions.granularity,
            outputs=self.outputs,
            name=self._name,
        )
        self.run, self.generated = start.run, start.generated
        return start.source

    def plain_kernel(self) -> str:
        """Plain CUDA C++. Raises PlainCudaError."""
        inputs = [
            Tensor(name, dtype, extents)
            for name, dtype, extents in zip(
                self._parameters, self._dtypes, self.dimensions.extents, strict=True
            )
        ]
        return kernel_source(self._function, inputs, self.outputs, self.dimensions.distinct)

    def task_toml(self) -> str:
        """The text of task.toml."""
        dimensions = self.dimensions
        document = tomlkit.document()
        document.add("summary", tomlkit.item(f"{self._name}, from PyTorch."))
        independent = self._independent()
        if independent:
            document.add("independent", tomlkit.item(independent))
        inputs = tomlkit.aot()
        for parameter, dtype, extents in zip(self._parameters, self._dtypes, dimensions.extents, strict=True):
            inputs.append(self._input(parameter, dtype, extents))
        document.add("inputs", inputs)
        outputs = tomlkit.aot()
        for output, (dtype, extents) in zip(self.outputs, self._outputs, strict=True):
            outputs.append(_table(name=output, dtype=dtype, shape=list(extents)))
        document.add("outputs", outputs)
        verify, held_out = awkward_shapes(dimensions, lambda shape: self._works(dimensions.extents, shape))
        shapes = tomlkit.table()
        shapes.add("search", shape_list([dimensions.sizes]))
        shapes.add("verify", shape_list(verify))
        shapes.add("held_out", shape_list(held_out))
        document.add("shapes", shapes)
        relative, absolute, ratio = _TOLERANCES.get(self._widest(), _TOLERANCES["float32"])
        own = self._own_error((*verify, *held_out))
        tolerance = _table(relative=max(relative, own), absolute=absolute, ratio=ratio)
        tolerance["relative"].comment(
            "of a row's largest value; as far off as the function itself is in its own precision"
            if own > relative
            else "of a row's largest value: one rounding to 16 bits, or sums of thousands of floats"
        )
        document.add("tolerance", tolerance)
        return tomlkit.dumps(document)

    def reference_files(self) -> dict[str, str]:
        """reference.py and, where the function is no part of a package, function.py."""
        names = ", ".join(self._parameters)
        function = self._name.partition(":")[2]
        copied = _copied_source(self._module)
        where = 'str(Path(__file__).with_name("function.py"))' if copied else f'"{self._module.__name__}"'
        imports = "from pathlib import Path\n\n" if copied else ""
        text = (
            f'"""{self._name} of PyTorch, on the CPU."""\n\n{imports}'
            f"from mctskernel.torch_reference import call_in_numpy\n\n\n"
            f"def reference({names}):\n"
            f'    return call_in_numpy({where}, "{function}", {names})\n'
        )
        return {"reference.py": text} | ({"function.py": copied} if copied else {})

    def _input(self, name: str, dtype: str, extents: Sequence[str | int]) -> Any:
        table = _table(name=name, dtype=dtype, shape=list(extents))
        if "int" in dtype:
            table.add("low", 0)
            table.add("high", self._highest(dtype))
            table["high"].comment("guessed: the largest value that the function may be given")
        return table

    def _highest(self, dtype: str) -> int | str:
        """Truth values are 8 bits; other whole numbers are taken for indices of the first tensor's last dimension."""
        if DTYPE_BYTES[dtype] == 1:
            return 1
        last = self.dimensions.extents[0][-1] if self.dimensions.extents[0] else 1
        return f"{last} - 1" if isinstance(last, str) else last - 1

    def _independent(self) -> str:
        """A dimension of every output along which nothing depends on anything else, as some numbers show."""
        dimensions = self.dimensions
        for name in dimensions.sizes:
            if dimensions.granularity[name] == 1 and all(e.count(name) == 1 for _, e in self._outputs):
                shape = {each: dimensions.granularity[each] * 6 for each in dimensions.sizes} | {name: 7}
                if all(self._is_independent(name, shape, chosen) for chosen in ([0, 2, 3], [6], [5, 1])):
                    return name
        return ""

    def _is_independent(self, name: str, shape: Shape, chosen: list[int]) -> bool:
        """Whether a part of the inputs gives the same part of the outputs."""
        tensors = {
            parameter: tensor.double() if tensor.is_floating_point() else tensor
            for parameter, tensor in self._tensors("cpu", shape).items()
        }
        parts = [
            _part(tensor, extents, name, chosen)
            for tensor, extents in zip(tensors.values(), self.dimensions.extents, strict=True)
        ]
        whole, part = _listed(self._function(*tensors.values())), _listed(self._function(*parts))
        return all(
            _part(each, extents, name, chosen).allclose(found, rtol=1e-6, equal_nan=True)
            for each, found, (_, extents) in zip(whole, part, self._outputs, strict=True)
        )

    def _own_error(self, shapes: Sequence[Shape]) -> float:
        """How far the function is off in 16 bits, as it rounds on its way: what its user lives with."""
        if not any(dtype in {"float16", "bfloat16"} for dtype, _ in self._outputs):
            return 0.0
        import torch  # noqa: PLC0415 - an extra

        largest = 0.0
        for shape in shapes:
            tensors = self._tensors("cpu", shape)
            with torch.no_grad():
                found = _listed(self._function(*tensors.values()))
                wide = (t.double() if t.is_floating_point() else t for t in tensors.values())
                truth = _listed(self._function(*wide))
            for (dtype, _), ours, true in zip(self._outputs, found, truth, strict=True):
                if dtype in {"float16", "bfloat16"} and true.dim():
                    scale = true.abs().amax(-1, keepdim=True).clamp(min=1e-30)
                    largest = max(
                        largest, float(((ours.double() - true.double()).abs() / scale).nan_to_num().max())
                    )
        return float(f"{1.5 * largest:.2g}")

    def _widest(self) -> str:
        """The output dtype with the least precision."""
        known = [dtype for dtype, _ in self._outputs if dtype in _TOLERANCES]
        return max(known, key=lambda dtype: _TOLERANCES[dtype][0], default="float32")

    def _works(self, extents: Sequence[Sequence[str | int]], sizes: Shape) -> bool:
        try:
            self._called("meta", extents, sizes)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError):
            return False
        return True

    def _output_tensors(self) -> tuple[tuple[str, tuple[str | int, ...]], ...]:
        import torch  # noqa: PLC0415 - an extra

        dimensions = self.dimensions
        result = self._called("meta", dimensions.extents, dimensions.distinct)
        tensors = _listed(result)
        if not tensors or not all(isinstance(each, torch.Tensor) for each in tensors):
            raise TaskError(f"{self._name} must return a tensor, or a tuple of tensors.")
        names = Names(dimensions.distinct, dimensions.granularity)
        found = []
        for tensor in tensors:
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPE_BYTES:
                raise TaskError(f"{self._name} returns a tensor of {dtype}, which no output can be.")
            extents = tuple(names.expression(size) or size for size in tensor.shape)
            found.append((dtype, extents or (1,)))
        return tuple(found)

    def _called(self, device: str, extents: Sequence[Sequence[str | int]], sizes: Shape) -> Any:
        import torch  # noqa: PLC0415 - an extra

        with torch.no_grad():
            return self._function(*self._tensors(device, sizes, extents).values())

    def _tensors(
        self, device: str, sizes: Shape, extents: Sequence[Sequence[str | int]] | None = None
    ) -> dict[str, Any]:
        import torch  # noqa: PLC0415 - an extra

        found = {}
        torch.manual_seed(0)
        for name, dtype, each in zip(
            self._parameters, self._dtypes, extents or self.dimensions.extents, strict=True
        ):
            size = tuple(sizes[extent] if isinstance(extent, str) else extent for extent in each)
            kind = getattr(torch, dtype)
            if device == "meta":
                found[name] = torch.empty(size, dtype=kind, device=device)
            elif kind.is_floating_point:
                found[name] = torch.randn(size, dtype=torch.float32, device=device).to(kind)
            else:
                found[name] = torch.zeros(size, dtype=kind, device=device)
        return found


def _found(text: str) -> tuple[Any, Callable[..., Any]]:
    module_name, separator, name = text.partition(":")
    if not (module_name and separator and name.isidentifier()):
        raise TaskError(f"{text!r} names no function; write package.module:function.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise TaskError(f"{module_name} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TaskError(f"{module_name} has no function called '{name}'.")
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
        raise TaskError(f"The dtype {unknown[0]!r} is not one of {', '.join((*DTYPE_BYTES, *_DTYPES))}.")
    if len(dtypes) not in {1, count}:
        raise TaskError(f"{len(dtypes)} dtypes for {count} tensors: give one for all, or one for each.")
    return tuple(dtypes) if len(dtypes) == count else tuple(dtypes) * count


def _copied_source(module: Any) -> str:
    """The text of the module's file, where it stands alone; empty where it is imported by its name."""
    if module.__package__ or module.__name__ == "__main__":
        return ""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


def _part(tensor: Any, extents: Sequence[str | int], name: str, chosen: list[int]) -> Any:
    """The elements of a tensor at some indices of a dimension, wherever it has it."""
    import torch  # noqa: PLC0415 - an extra

    for axis, extent in enumerate(extents):
        if extent == name:
            tensor = tensor.index_select(axis, torch.tensor(chosen))
    return tensor


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _table(**entries: Any) -> Any:
    table = tomlkit.table()
    for name, value in entries.items():
        table.add(name, value)
    return table
