"""A CUDA C++ kernel with host code in C++: a PyTorch extension in one file, for harnesses that build those.

Its function takes inputs and scalars in a given order and then the outputs, which it fills. It launches the kernel at
the shapes of the task, whose numbers are written into it, and refuses others. All names in it are generated, so that no
text of a task or a candidate can be mistaken for C++.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from mctskernel.core.expression import Number
from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import PORTABLE_CLUSTER, ResolvedPlan
from mctskernel.core.task import Task
from mctskernel.problems.host_code.cuda import calls_of, device_text, host_functions
from mctskernel.problems.host_code.expressions import TEMPLATES, HostCodeError
from mctskernel.problems.host_code.launch import Argument, WrittenLaunch, vetted_plan

_ADDRESS = "reinterpret_cast<int64_t>({}.data_ptr())"
_STREAM = "reinterpret_cast<int64_t>(c10::cuda::getCurrentCUDAStream().stream())"


def cpp_program(task: Task, kernel: Kernel, order: Sequence[str]) -> str:
    """The program's text; `run` takes the inputs and scalars in `order`, then the outputs. Raises HostCodeError."""
    if task.in_place:
        raise HostCodeError("A task that works in place has no outputs to fill.")
    plan, tensors = vetted_plan(task, kernel), (*task.inputs, *task.outputs)
    buffers = {tensor.name: f"tensor_{number}" for number, tensor in enumerate(tensors)}
    buffers |= {each.name: f"scratch_{number}" for number, each in enumerate(plan.scratch)}
    varying = [tensor for tensor in tensors if any(isinstance(extent, str) for extent in tensor.shape)]
    plans: dict[str, ResolvedPlan] = {}
    for shape in task.shapes:
        sizes = (
            f"{buffers[each.name]}.sizes() == at::IntArrayRef{{{', '.join(map(_literal, each.extents(shape)))}}}"
            for each in varying
        )
        resolved = task.resolved(kernel, shape)
        if plans.setdefault(" && ".join(sizes) or "true", resolved) != resolved:
            raise HostCodeError("A dimension of the task doesn't follow from the shapes of tensors.")
    launches = {condition: _launches(each, buffers) for condition, each in plans.items()}
    host = host_functions(kernel, next(iter(launches.values())))
    lines = ["const c10::cuda::CUDAGuard guard(tensor_0.device());"]
    lines += [f"{buffers[each.name]} = {buffers[each.name]}.contiguous();" for each in task.inputs]
    for condition, resolved in plans.items():
        statements = [f"{call};" for call in calls_of(host, launches[condition], _ADDRESS, _STREAM)]
        body = [*_scratch(resolved, buffers), *statements, "return;"]
        lines += [f"if ({condition}) {{", *(f"    {line}" for line in body), "}"]
    lines.append(
        'TORCH_CHECK_VALUE(false, "These shapes are none of those that the kernel was written for.");'
    )
    return TEMPLATES.get_template("program.cu").render(
        device=device_text(kernel),
        functions=host.text,
        parameters=", ".join(_parameters(task, order, buffers)),
        body="\n".join(f"    {line}" for line in lines),
    )


def _parameters(task: Task, order: Sequence[str], buffers: Mapping[str, str]) -> Iterator[str]:
    scalars = {name: f"scalar_{number}" for number, name in enumerate(task.scalars)}
    for name in (*order, *(tensor.name for tensor in task.outputs)):
        if name in scalars:
            type_ = "int64_t" if isinstance(task.scalars[name], int) else "double"
            yield f"{type_} {scalars[name]}"
        else:
            yield f"at::Tensor {buffers[name]}"


def _scratch(plan: ResolvedPlan, buffers: Mapping[str, str]) -> Iterator[str]:
    for scratch in plan.scratch:
        make = "zeros" if scratch.zero else "empty"
        size = _literal(scratch.nbytes)
        yield f"const at::Tensor {buffers[scratch.name]} = at::{make}({{{size}}}, tensor_0.options().dtype(at::kByte));"


def _launches(plan: ResolvedPlan, buffers: Mapping[str, str]) -> list[WrittenLaunch]:
    return [
        WrittenLaunch(
            launch.kernel,
            tuple(map(_literal, launch.grid)),
            tuple(map(_literal, launch.block)),
            _literal(launch.shared_bytes),
            tuple(_argument(each, buffers) for each in launch.arguments),
            cluster=tuple(map(_literal, launch.cluster)) if launch.cluster != (1, 1, 1) else (),
            nonportable_cluster=math.prod(launch.cluster) > PORTABLE_CLUSTER,
            programmatic=launch.programmatic,
        )
        for launch in plan.launches
    ]


def _argument(argument: str | Number, buffers: Mapping[str, str]) -> Argument:
    if not isinstance(argument, str):
        return Argument(_literal(argument))
    return Argument(buffers[argument], is_buffer=True) if argument in buffers else Argument("", is_map=True)


def _literal(value: Number) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise HostCodeError(f"{value} can't be written as a number in C++.")
        return repr(value)
    if abs(value) >= 1 << 63:
        raise HostCodeError(f"A number of {value.bit_length()} bits exceeds 64 bits.")
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
