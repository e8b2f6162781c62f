"""A CUDA C++ kernel as one file with host code in C++: an extension of PyTorch, for harnesses that build those.

Its function is in destination-passing style: it takes inputs and numbers in the order that is asked for, and then the
outputs, which it fills. Names in it are our own, so that nothing of a task or a candidate can be mistaken for C++.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from string import Template

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import Extent, Launch, LaunchPlan
from mctskernel.core.task import Task
from mctskernel.host_code.cpp_expressions import CPP_ARITHMETIC, CppVariable, cpp_number, cpp_whole
from mctskernel.host_code.cuda_host import host_functions
from mctskernel.host_code.device_text import device_text
from mctskernel.host_code.dimensions import SIZE, solve
from mctskernel.host_code.errors import HostCodeError
from mctskernel.host_code.vetted_plan import vetted_plan
from mctskernel.host_code.written_launch import Argument, Kind, WrittenLaunch

SCALAR_TYPES: Mapping[str, str] = {
    "float64": "at::kDouble",
    "float32": "at::kFloat",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "float8_e4m3fn": "at::kFloat8_e4m3fn",
    "float8_e5m2": "at::kFloat8_e5m2",
    "bool": "at::kBool",
    "int8": "at::kChar",
    "uint8": "at::kByte",
    "int16": "at::kShort",
    "int32": "at::kInt",
    "uint32": "at::kUInt32",
    "int64": "at::kLong",
    "uint64": "at::kUInt64",
}
"""What PyTorch calls element types in C++."""

COMPILER_FLAGS = (
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
"""Flags for nvcc: kernels are searched without --use_fast_math, and PyTorch's own flags take operators away."""

_PROGRAM = Template("""\
#ifndef __CUDA_ARCH__
#include <torch/extension.h>
#endif

$device
$functions
#ifndef __CUDA_ARCH__
$arithmetic
void mctskernel_run($parameters) {
$body
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("$function", &mctskernel_run);
}
#endif
""")


def cpp_program(
    task: Task, kernel: Kernel, order: Sequence[str], *, function: str = "run", flat: Collection[str] = ()
) -> str:
    """The program's text; `order` names the inputs and scalars that its function takes before the outputs.

    Tensors of `flat` have no extents where it is called, and one of 1 in the task. Raises HostCodeError for a kernel
    that can't stand in such a program.
    """
    if kernel.language is not Language.CUDA:
        raise HostCodeError(f"A kernel in {kernel.language} is launched from Python.")
    if task.in_place:
        raise HostCodeError("A task that works in place has no outputs to be filled.")
    if not function.isascii() or not function.isidentifier():
        raise HostCodeError(f"{function!r} can't be the name of a function.")
    return _Writer(task, kernel, order, flat).program(function)


class _Writer:
    """The names of a program, and its parts."""

    def __init__(self, task: Task, kernel: Kernel, order: Sequence[str], flat: Collection[str]) -> None:
        self._task, self._kernel, self._order, self._flat = task, kernel, order, flat
        self._plan = vetted_plan(task, kernel)
        self._tensors = (*task.inputs, *task.outputs)
        self._buffers = {tensor.name: f"tensor_{number}" for number, tensor in enumerate(self._tensors)}
        self._buffers |= {each.name: f"scratch_{number}" for number, each in enumerate(self._plan.scratch)}
        dimensions = dict.fromkeys(name for shape in task.shapes for name in shape)
        self._dimensions = {name: f"dimension_{number}" for number, name in enumerate(dimensions)}
        self._scalars = {name: f"scalar_{number}" for number, name in enumerate(task.scalars)}
        self._variables = _variables(kernel, self._dimensions, self._scalars, task.scalars)

    def program(self, function: str) -> str:
        """The whole text."""
        host = host_functions(self._kernel, [self._written(launch) for launch in self._plan.launches])
        lines = [
            *self._checks(),
            *self._found_dimensions(),
            *self._shape_checks(),
            *self._scratch(self._plan),
        ]
        lines += [f"{name}({', '.join(passed)});" for name, passed in host.calls]
        return _PROGRAM.substitute(
            device=device_text(self._kernel),
            functions=host.text,
            arithmetic=CPP_ARITHMETIC,
            parameters=", ".join(self._parameters()),
            body="\n".join(f"    {line}" for line in lines),
            function=function,
        )

    def _parameters(self) -> Iterator[str]:
        for name in self._order:
            if name in self._scalars:
                type_ = "int64_t" if isinstance(self._task.scalars[name], int) else "double"
                yield f"{type_} {self._scalars[name]}"
            else:
                yield f"at::Tensor {self._buffers[name]}"
        for tensor in self._task.outputs:
            yield f"at::Tensor {self._buffers[tensor.name]}"

    def _checks(self) -> Iterator[str]:
        outputs = {tensor.name for tensor in self._task.outputs}
        for tensor in self._tensors:
            local = self._buffers[tensor.name]
            if tensor.name in self._flat:
                yield f"{local} = {local}.view({{1}});"
            rank = len(tensor.shape)
            yield (
                f"TORCH_CHECK_VALUE({local}.scalar_type() == {SCALAR_TYPES[tensor.dtype]} && {local}.dim() == {rank}, "
                f'"{tensor.name} must hold {tensor.dtype} and have {rank} dimension(s).");'
            )
            if tensor.name in outputs:
                yield f'TORCH_CHECK_VALUE({local}.is_contiguous(), "{tensor.name} must be contiguous.");'
            else:
                yield f"{local} = {local}.contiguous();"

    def _found_dimensions(self) -> Iterator[str]:
        solved = solve(self._tensors, self._dimensions)
        for each in solved:
            size = CppVariable(f"{self._buffers[each.extent.tensor]}.size({each.extent.axis})")
            variables = {**self._variables, SIZE: size}
            if each.divides:
                rest = cpp_whole(f"({each.divides}) % {SIZE}", variables)
                yield f'TORCH_CHECK_VALUE({rest} == 0, "{each.name} doesn\'t follow from the shapes.");'
            yield f"const int64_t {self._dimensions[each.name]} = {cpp_whole(each.expression, variables)};"
        known = {each.name for each in solved}
        for name, local in self._dimensions.items():
            if name not in known:
                sizes = {shape.get(name) for shape in self._task.shapes}
                size_ = sizes.pop() if len(sizes) == 1 else None
                if size_ is None:
                    raise HostCodeError(f"The dimension '{name}' doesn't follow from the shapes of tensors.")
                yield f"const int64_t {local} = {cpp_whole(size_, {})};"

    def _shape_checks(self) -> Iterator[str]:
        told = {
            (each.extent.tensor, each.extent.axis)
            for each in solve(self._tensors, self._dimensions)
            if each.expression == SIZE
        }
        for tensor in self._tensors:
            local = self._buffers[tensor.name]
            for axis, extent in enumerate(tensor.shape):
                if (tensor.name, axis) in told:
                    continue
                yield (
                    f"TORCH_CHECK_VALUE({local}.size({axis}) == {cpp_whole(extent, self._variables)}, "
                    f'"{tensor.name} has another shape than the other tensors ask for.");'
                )

    def _scratch(self, plan: LaunchPlan) -> Iterator[str]:
        first = self._buffers[self._task.inputs[0].name]
        for scratch in plan.scratch:
            make = "zeros" if scratch.zero else "empty"
            shape = ", ".join(cpp_whole(extent, self._variables) for extent in scratch.shape)
            yield (
                f"const at::Tensor {self._buffers[scratch.name]} = at::{make}({{{shape}}}, "
                f"{first}.options().dtype({SCALAR_TYPES[scratch.dtype]}));"
            )

    def _written(self, launch: Launch) -> WrittenLaunch:
        def three(extents: Sequence[Extent]) -> tuple[str, ...]:
            return (*(cpp_whole(each, self._variables) for each in extents), *["1"] * (3 - len(extents)))

        def argument(value: Extent | float) -> Argument:
            if isinstance(value, str) and value in self._buffers:
                return Argument(self._buffers[value], Kind.BUFFER)
            source, is_whole = cpp_number(value, self._variables)
            return Argument(source, Kind.WHOLE if is_whole else Kind.REAL)

        return WrittenLaunch(
            launch.kernel,
            three(launch.grid),
            three(launch.block),
            cpp_whole(launch.shared, self._variables),
            tuple(argument(each) for each in launch.args),
            frozenset(),
        )


def _variables(
    kernel: Kernel, dimensions: Mapping[str, str], scalars: Mapping[str, str], values: Mapping[str, Number]
) -> dict[str, CppVariable]:
    """What a plan's expressions may read: the last of macros, scalars and dimensions with a name wins, as in a task."""
    found = {
        name: CppVariable(cpp_whole(value, {}))
        for name, value in kernel.macros.items()
        if isinstance(value, int)
    }
    found |= {name: CppVariable(local, isinstance(values[name], int)) for name, local in scalars.items()}
    return found | {name: CppVariable(local) for name, local in dimensions.items()}
