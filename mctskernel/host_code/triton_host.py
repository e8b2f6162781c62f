"""Triton kernels, launched directly: the module begins with the candidate's own text."""

from __future__ import annotations

import ast

from mctskernel.core.kernel import Kernel
from mctskernel.host_code.errors import HostCodeError
from mctskernel.host_code.written_launch import WrittenLaunch
from mctskernel.profiling.triton.source import SourceError, TritonModule, read_module

_IMPORTED = frozenset({"triton", "tl", "libdevice"})


def vetted(kernel: Kernel) -> TritonModule:
    """The module of a kernel that holds nothing but constants and functions. Raises HostCodeError."""
    try:
        return read_module(kernel.source)
    except SourceError as error:
        raise HostCodeError(f"The kernel can't be a part of a module: {error}") from error


def names_of(module: TritonModule) -> frozenset[str]:
    """The names that the candidate's text gives a meaning to."""
    return frozenset({*module.functions, *module.constants, *_IMPORTED})


def launch_source(launch: WrittenLaunch, module: TritonModule) -> str:
    """The statement that launches a kernel. Raises HostCodeError for a launch that doesn't fit the kernel."""
    what = f"The launch of '{launch.kernel}'"
    if launch.kernel not in module.functions:
        raise HostCodeError(f"{what} is of a kernel that the source doesn't define.")
    assert launch.options is not None  # noqa: S101 - plans in docstrings always have them
    given, constexprs = list(launch.arguments), dict(launch.options.constexprs)
    arguments = []
    # All of them by place: a parameter may be called as one of Triton's own launcher is, such as `grid`.
    for name, is_constexpr, default in _parameters(module.functions[launch.kernel]):
        if is_constexpr and name in constexprs:
            arguments.append(constexprs.pop(name))
        elif is_constexpr and default is not None:
            arguments.append(default)
        elif not is_constexpr and given:
            arguments.append(given.pop(0).source)
        else:
            raise HostCodeError(f"{what} has nothing for the parameter '{name}'.")
    if given or constexprs:
        raise HostCodeError(f"{what} has more arguments than the kernel has parameters.")
    arguments += [f"num_warps={launch.options.num_warps}", f"num_stages={launch.options.num_stages}"]
    return f"{launch.kernel}[({', '.join(launch.grid)})]({', '.join(arguments)})"


def _parameters(function: ast.FunctionDef) -> list[tuple[str, bool, str | None]]:
    """Name of each parameter, whether it is a constexpr, and the source of its default."""
    parameters = function.args.args
    defaults: list[str | None] = [None] * (len(parameters) - len(function.args.defaults))
    defaults += [ast.unparse(default) for default in function.args.defaults]
    return [
        (each.arg, each.annotation is not None, default)
        for each, default in zip(parameters, defaults, strict=True)
    ]
