"""A kernel as the source of a Python module, whose function returns its outputs or fills given ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from mctskernel.core.expression import Number, names_in
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import LaunchPlan
from mctskernel.core.task import Task, Tensor
from mctskernel.problems.host_code import cuda
from mctskernel.problems.host_code.expressions import (
    ARITHMETIC,
    SIZE,
    HostCodeError,
    Names,
    Variable,
    docstring,
    solve,
    translate,
    translate_whole,
)
from mctskernel.problems.host_code.launch import (
    names_of,
    triton_launch,
    triton_module,
    vetted_plan,
    write_launch,
)

_CHECKS = Template("""\
def $check_tensor(name, tensor, dtype, rank, device):
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must hold {dtype}, not {tensor.dtype}.")
    if tensor.dim() != rank:
        raise ValueError(f"{name} must have {rank} dimension(s), not the shape {tuple(tensor.shape)}.")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, and another tensor on {device}.")
    if tensor.numel() == 0:
        raise ValueError(f"{name} has no elements: its shape is {tuple(tensor.shape)}.")


def $check_shape(name, tensor, shape):
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; with the other tensors it must be {shape}.")
""")

_CHECKED = ("check_tensor", "check_shape", "check_place")

_CHECK_PLACE = Template("""\
def $check_place(name, tensor):
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is written to where it lies, and must be contiguous.")
""")


def host_module(task: Task, kernel: Kernel, *, function: str = "run", reserved: Collection[str] = ()) -> str:
    """The source of a module whose `function` takes the task's inputs in order and returns its output, or a tuple.

    An output that shares an input's buffer is that input, modified. The task's scalars are keyword arguments with its
    values as defaults, as are dimensions that can't be computed from the inputs' shapes. The function raises ValueError
    for tensors that don't fit together. `reserved` are names that the caller will add to the module. Raises
    HostCodeError for a kernel that the rules for candidates refuse, whose launch plan doesn't fit the task, or that
    defines a reserved name.
    """
    return _Writer(task, kernel, function, reserved).returning()


def host_module_into(
    task: Task, kernel: Kernel, *, function: str = "run_into", reserved: Collection[str] = ()
) -> str:
    """As `host_module`, but `function` fills outputs, which it takes after the inputs."""
    return _Writer(task, kernel, function, reserved).filling()


class _Writer:
    """The names of a module, and its parts."""

    def __init__(self, task: Task, kernel: Kernel, function: str, reserved: Collection[str]) -> None:
        self._task = task
        self._function = function
        self._plan = vetted_plan(task, kernel)
        triton = triton_module(kernel) if kernel.language is Language.TRITON else None
        theirs = names_of(triton) if triton is not None else frozenset()
        _check_names(function, reserved, theirs)
        names = Names({function, *reserved, *theirs})
        given = {name: names.fresh(name) for name in (*cuda.NAMES, *_CHECKED, "launch", *ARITHMETIC)}
        self._names = given
        self._torch = given["torch"]
        self._arithmetic = {name: given[name] for name in ARITHMETIC}
        kernels = (launch.kernel for launch in self._plan.launches)
        self._scope = _Scope.of(task, kernel, self._plan, Names((*given.values(), *kernels)))
        launches = [
            write_launch(launch, self._scope.buffers, self._scope.variables, self._arithmetic)
            for launch in self._plan.launches
        ]
        if triton is not None:
            imported = "import torch" if self._torch == "torch" else f"import torch as {self._torch}"
            self._head = f"{kernel.source.rstrip()}\n\n{imported}\n"
            self._launches = [triton_launch(each, triton) for each in launches]
        else:
            label = re.sub(r"\W", "_", task.name, flags=re.ASCII) + f"_{kernel.identity[:16]}"
            self._head, self._launches = cuda.write_host(kernel, launches, given, label)
        self._is_triton = triton is not None

    def returning(self) -> str:
        """The module whose function returns its outputs."""
        task, scope = self._task, self._scope
        lines, parameters = self._arriving(task.inputs)
        lines += [
            f"{scope.buffers[tensor.name]} = {self._torch}.empty({self._shape(tensor.shape)}, "
            f"dtype={self._dtype(tensor.dtype)}, device={self._device})"
            for tensor in task.outputs
            if tensor.name not in task.in_place
        ]
        lines.append(self._call_of_launch)
        lines.append(f"return {', '.join(scope.buffers[tensor.name] for tensor in task.outputs)}")
        return self._module(parameters, lines)

    def filling(self) -> str:
        """The module whose function fills its outputs."""
        new = [tensor for tensor in self._task.outputs if tensor.name not in self._task.in_place]
        lines, parameters = self._arriving((*self._task.inputs, *new))
        return self._module(parameters, [*lines, self._call_of_launch])

    @property
    def _device(self) -> str:
        return f"{self._scope.buffers[self._task.inputs[0].name]}.device"

    @property
    def _call_of_launch(self) -> str:
        return f"{self._names['launch']}({', '.join(self._scope.parameters)})"

    def _module(self, parameters: str, lines: Sequence[str]) -> str:
        launch = self._launch_function()
        function = _function(self._function, parameters, [docstring(self._description()), *lines])
        arithmetic = [
            source.format(name=self._arithmetic[name])
            for name, source in ARITHMETIC.items()
            if f"{self._arithmetic[name]}(" in f"{launch}\n{function}"
        ]
        checks = [_CHECKS.substitute(self._names)]
        if self._names["check_place"] in function:
            checks.append(_CHECK_PLACE.substitute(self._names))
        return "\n\n".join([self._head, function, launch, *checks, *arithmetic])

    def _launch_function(self) -> str:
        scope = self._scope
        lines = [f"{local} = {value}" for local, value in scope.constants.items()]
        for scratch in self._plan.scratch:
            make = "zeros" if scratch.zero else "empty"
            lines.append(
                f"{scope.buffers[scratch.name]} = {self._torch}.{make}({self._shape(scratch.shape)}, "
                f"dtype={self._dtype(scratch.dtype)}, device={self._device})"
            )
        if self._is_triton:
            first = scope.buffers[self._task.inputs[0].name]
            lines.append(f"with {self._torch}.cuda.device_of({first}):")
            lines += [f"    {launch}" for launch in self._launches]
        else:
            lines += self._launches
        return _function(self._names["launch"], ", ".join(scope.parameters), lines)

    def _arriving(self, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
        """The lines that check tensors and find the dimensions, and the function's parameters."""
        task, scope = self._task, self._scope
        lines = [
            f"{self._names['check_tensor']}({tensor.name!r}, {scope.buffers[tensor.name]}, "
            f"{self._dtype(tensor.dtype)}, {len(tensor.shape)}, {self._device})"
            for tensor in tensors
        ]
        solved = solve(tensors, scope.dimensions)
        for each in solved:
            size = f"{scope.buffers[each.extent.tensor]}.shape[{each.extent.axis}]"
            variables = {**scope.variables, SIZE: Variable(size)}
            if each.divides:
                rest = translate_whole(f"({each.divides}) % {SIZE}", variables, self._arithmetic)
                lines += [
                    f"if {rest.source}:",
                    f'    raise ValueError("{each.name} doesn\'t follow from the shape of {each.extent.tensor}.")',
                ]
            found = translate_whole(each.expression, variables, self._arithmetic)
            lines.append(f"{scope.dimensions[each.name]} = {found.source}")
        written = {tensor.name for tensor in task.outputs}
        given = {(each.extent.tensor, each.extent.axis) for each in solved if each.expression == SIZE}
        for tensor in tensors:
            local = scope.buffers[tensor.name]
            if any((tensor.name, axis) not in given for axis in range(len(tensor.shape))):
                lines.append(
                    f"{self._names['check_shape']}({tensor.name!r}, {local}, {self._shape(tensor.shape)})"
                )
            if tensor.name in written:
                lines.append(f"{self._names['check_place']}({tensor.name!r}, {local})")
            else:
                lines.append(f"{local} = {local}.contiguous()")
        known = {each.name for each in solved}
        named = [
            _with_default(local, {shape.get(name) for shape in task.shapes})
            for name, local in scope.dimensions.items()
            if name not in known
        ]
        named += [
            f"{local}={translate(task.scalars[name], {}, {}).source}" for name, local in scope.scalars.items()
        ]
        parameters = [scope.buffers[tensor.name] for tensor in tensors] + (["*", *named] if named else [])
        return lines, ", ".join(parameters)

    def _description(self) -> str:
        arriving, leaving = (
            ", ".join(f"{each.name} ({each.dtype} {_in_words(each.shape)})" for each in tensors)
            for tensors in (self._task.inputs, self._task.outputs)
        )
        return f"{self._task.name}: of {arriving} makes {leaving}."

    def _shape(self, shape: Sequence[int | str]) -> str:
        extents = [translate_whole(each, self._scope.variables, self._arithmetic).source for each in shape]
        return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"

    def _dtype(self, name: str) -> str:
        return f"{self._torch}.{name}"


@dataclass(frozen=True)
class _Scope:
    """What the module's functions call things: by the names that task and plan have for them."""

    buffers: Mapping[str, str]
    dimensions: Mapping[str, str]
    scalars: Mapping[str, str]
    constants: Mapping[str, str]
    variables: Mapping[str, Variable]
    tensors: int

    @classmethod
    def of(cls, task: Task, kernel: Kernel, plan: LaunchPlan, names: Names) -> _Scope:
        """Give every name that a launch may mention a local one; the kernel's macros are constants of a launch."""
        buffers = {name: names.fresh(name) for name in task.buffer_names}
        known = dict.fromkeys(name for shape in task.shapes for name in shape if name != task.inputs_by)
        dimensions = {name: names.fresh(name) for name in known}
        scalars = {name: names.fresh(name) for name in task.scalars if name not in dimensions}
        tensors = len(buffers)
        buffers |= {each.name: names.fresh(each.name) for each in plan.scratch}
        used = _names_used(plan)
        macros = {
            name: (names.fresh(name), value)
            for name, value in kernel.macros.items()
            if name in used and name not in dimensions and name not in scalars
        }
        whole: Mapping[str, Number] = task.scalars
        variables = {name: Variable(local) for name, (local, _) in macros.items()}
        variables |= {name: Variable(local, isinstance(whole[name], int)) for name, local in scalars.items()}
        variables |= {name: Variable(local) for name, local in dimensions.items()}
        return cls(
            buffers, dimensions, scalars, {local: str(v) for local, v in macros.values()}, variables, tensors
        )

    @property
    def parameters(self) -> list[str]:
        """The parameters of the function that launches, which are also what it is called with."""
        tensors = list(self.buffers.values())[: self.tensors]
        return [*tensors, *self.dimensions.values(), *self.scalars.values()]


def _names_used(plan: LaunchPlan) -> frozenset[str]:
    """What the plan's expressions read."""
    numbers: list[int | float | str] = [extent for each in plan.scratch for extent in each.shape]
    for launch in plan.launches:
        numbers += [*launch.grid, *launch.block, *launch.args, launch.shared]
        if launch.triton is not None:
            numbers += [launch.triton.num_warps, launch.triton.num_stages]
            numbers += [value for _, value in launch.triton.constexprs]
    return frozenset().union(*(names_in(number) for number in numbers))


def _check_names(function: str, reserved: Collection[str], theirs: Collection[str]) -> None:
    for name in (function, *reserved):
        if name in theirs:
            raise HostCodeError(f"The kernel's own text defines '{name}', which the module needs.")


def _function(name: str, parameters: str, lines: Sequence[str]) -> str:
    return "\n".join([f"def {name}({parameters}):", *(f"    {line}" for line in lines), ""])


def _in_words(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(str(extent) for extent in shape)}]"


def _with_default(name: str, values: Collection[int | None]) -> str:
    """A parameter, with a default if it is the same at all shapes."""
    (value, *others) = values
    return name if others or value is None else f"{name}={value}"
