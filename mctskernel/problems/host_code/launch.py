"""The launches of a validated plan as Python source, and launches of Triton kernels."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.launch_plan import (
    Extent,
    Launch,
    LaunchPlan,
    LaunchPlanError,
    TritonOptions,
    plan_of,
)
from mctskernel.core.task import Task
from mctskernel.problems.host_code.expressions import HostCodeError, translate, translate_whole
from mctskernel.profiling.source_rules import rejection
from mctskernel.profiling.triton.source import SourceError, TritonModule, read_module


@dataclass(frozen=True)
class Argument:
    """An argument of a launch: a buffer, a tensor map, or a number."""

    source: str
    is_buffer: bool = False
    is_map: bool = False


@dataclass(frozen=True)
class WrittenLaunch:
    """A launch; `grid` and `block` have three extents each."""

    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    arguments: tuple[Argument, ...]
    options: TritonOptions | None = None
    cluster: tuple[str, ...] = ()
    nonportable_cluster: bool = False
    programmatic: bool = False

    @property
    def geometry(self) -> tuple[str, ...]:
        return (*self.grid, *self.block, self.shared, *self.cluster)


def write_launch(
    launch: Launch, plan: LaunchPlan, buffers: Mapping[str, str], names: Mapping[str, str]
) -> WrittenLaunch:
    """Translate a launch, with the module's names of buffers and of numbers. Raises HostCodeError."""
    maps = {each.name: each for each in plan.tensor_maps}

    def whole(extent: Extent) -> str:
        return translate_whole(extent, names)

    def argument(each: Extent | float) -> Argument:
        if each in buffers:
            return Argument(buffers[str(each)], is_buffer=True)
        if each in maps:
            made = maps[str(each)]
            axes = (
                f"[{', '.join(map(whole, axis))}]" for axis in (made.shape, made.box, made.element_strides)
            )
            layout = f"{made.swizzle}, {made.interleave}, {made.fill!r}{', tf32=True' if made.tf32 else ''}"
            return Argument(f"{buffers[made.tensor]}, {', '.join(axes)}, {layout}", is_map=True)
        return Argument(translate(each, names))

    options = None
    if launch.triton is not None:
        options = TritonOptions(
            tuple((name, translate(each, names)) for name, each in launch.triton.constexprs),
            whole(launch.triton.num_warps),
            whole(launch.triton.num_stages),
            whole(launch.triton.num_ctas),
            whole(launch.triton.maxnreg),
        )
    return WrittenLaunch(
        launch.kernel,
        _three([whole(extent) for extent in launch.grid]),
        _three([whole(extent) for extent in launch.block]),
        whole(launch.shared),
        tuple(map(argument, launch.args)),
        options,
        _three([whole(extent) for extent in launch.cluster]) if launch.cluster else (),
        launch.nonportable_cluster,
        launch.programmatic,
    )


def _three(extents: list[str]) -> tuple[str, ...]:
    return (*extents, *["1"] * (3 - len(extents)))


def vetted_plan(task: Task, kernel: Kernel) -> LaunchPlan:
    """The launch plan, checked against the task at all shapes. Raises HostCodeError for a kernel that is refused."""
    if kernel.language is Language.CONFIGURATION or not task.inputs:
        raise HostCodeError("A recorded configuration has no kernel.")
    if reason := rejection(kernel):
        raise HostCodeError(reason)
    try:
        plan = plan_of(kernel)
        for shape in task.shapes:
            task.resolved(kernel, shape)
    except LaunchPlanError as error:
        raise HostCodeError(str(error)) from error
    if not all(each.optional for each in plan.tensor_maps):
        raise HostCodeError("The launch plan has tensor maps that aren't optional; host code may pass none.")
    return plan


def triton_module(kernel: Kernel) -> TritonModule:
    """The constants and functions of a Triton kernel's text. Raises HostCodeError for anything else in it."""
    try:
        return read_module(kernel.source)
    except SourceError as error:
        raise HostCodeError(f"The kernel can't be in a module: {error}") from error


def triton_launch(launch: WrittenLaunch, module: TritonModule) -> str:
    """The statement that launches a kernel. Raises HostCodeError for a launch that doesn't fit the kernel."""
    what = f"The launch of '{launch.kernel}'"
    if launch.kernel not in module.functions:
        raise HostCodeError(f"{what} names a kernel that the source doesn't define.")
    assert launch.options is not None  # noqa: S101 - plans in docstrings always have them
    given, constexprs = list(launch.arguments), dict(launch.options.constexprs)
    arguments = []
    # Positional, as a parameter may have the name of one of Triton's launcher, such as `grid`.
    for name, is_constexpr, default in _parameters(module.functions[launch.kernel]):
        if is_constexpr and name in constexprs:
            arguments.append(str(constexprs.pop(name)))
        elif is_constexpr and default is not None:
            arguments.append(default)
        elif not is_constexpr and given:
            arguments.append(given.pop(0).source)
        else:
            raise HostCodeError(f"{what} has nothing for the parameter '{name}'.")
    if given or constexprs:
        raise HostCodeError(f"{what} has more arguments than the kernel has parameters.")
    arguments += [f"num_warps={launch.options.num_warps}", f"num_stages={launch.options.num_stages}"]
    arguments += [f"num_ctas={launch.options.num_ctas}"] if launch.options.num_ctas != "1" else []
    arguments += [f"maxnreg={launch.options.maxnreg}"] if launch.options.maxnreg != "0" else []
    return f"{launch.kernel}[({', '.join(launch.grid)})]({', '.join(arguments)})"


def _parameters(function: ast.FunctionDef) -> list[tuple[str, bool, str | None]]:
    """The name of each parameter, whether it is a constexpr, and the source of its default."""
    parameters = function.args.args
    defaults: list[str | None] = [None] * (len(parameters) - len(function.args.defaults))
    defaults += [ast.unparse(default) for default in function.args.defaults]
    return [
        (each.arg, each.annotation is not None, default)
        for each, default in zip(parameters, defaults, strict=True)
    ]
