"""CUDA C++ kernels, built by `torch.utils.cpp_extension.load_inline` when the module's function is first called.

Each launch has a host function in C++. Its numbers are worked out in Python, so it takes plain ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from mctskernel.core.kernel import Kernel
from mctskernel.host_code.device_text import Signature, device_text, signature
from mctskernel.host_code.errors import HostCodeError
from mctskernel.host_code.literals import raw_literal
from mctskernel.host_code.written_launch import Kind, WrittenLaunch

NAMES = ("functools", "torch", "load_inline", "DEVICE", "HOST", "DECLARATIONS", "extension")
"""What the text gives names to."""

_TYPES = {Kind.BUFFER: "const at::Tensor&", Kind.WHOLE: "int64_t", Kind.REAL: "double"}

_GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")

_HOST = Template("""\
#ifndef __CUDA_ARCH__
$includes
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

$stubs

$functions#endif
""")

_HOST_FUNCTION = Template("""\
$signature {
    const c10::cuda::CUDAGuard guard($tensor.device());
    if (shared > 0) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(::$kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    }
    const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
    ::$kernel<<<grid, block, shared, c10::cuda::getCurrentCUDAStream()>>>(
        $arguments);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
""")

# PyTorch's own flags take the operators of 16-bit types away, and without an `a` there is no wgmma.
_MODULE = Template("""\
import functools$as_functools

import torch$as_torch
from torch.utils.cpp_extension import load_inline$as_load_inline

$DEVICE = $device_text

$HOST = $host_text

$DECLARATIONS = $declaration_text


@$functools.cache
def $extension():
    major, minor = $torch.cuda.get_device_capability()
    architecture = f"{major}{minor}a" if major >= 9 else f"{major}{minor}"
    return $load_inline(
        name=$label,
        cpp_sources=$DECLARATIONS,
        cuda_sources=$DEVICE + $HOST,
        functions=$function_names,
        extra_cuda_cflags=[
            f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
            "-U__CUDA_NO_HALF_OPERATORS__",
            "-U__CUDA_NO_HALF_CONVERSIONS__",
            "-U__CUDA_NO_HALF2_OPERATORS__",
            "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
        ],
    )
""")


@dataclass(frozen=True)
class CudaHost:
    """The part of a module that builds its kernels, and the statement of each launch."""

    text: str
    launches: tuple[str, ...]


@dataclass(frozen=True)
class HostFunctions:
    """A function in C++ for each launch: all of them, their declarations, and what is called, in order."""

    text: str
    declarations: str
    calls: tuple[tuple[str, tuple[str, ...]], ...]


def host_functions(kernel: Kernel, launches: Sequence[WrittenLaunch]) -> HostFunctions:
    """The functions that launch a kernel, for a file that begins with its `device_text`. Raises HostCodeError."""
    signatures = {name: signature(kernel, name) for name in dict.fromkeys(each.kernel for each in launches)}
    functions = [f"launch_{number}" for number in range(len(launches))]
    declared = [_declaration(name, launch) for name, launch in zip(functions, launches, strict=True)]
    defined = [
        _definition(declaration, launch, signatures[launch.kernel])
        for declaration, launch in zip(declared, launches, strict=True)
    ]
    headers = sorted(frozenset().union(*(each.headers for each in signatures.values())))
    host = _HOST.substitute(
        includes="".join(f"#include <{header}>\n" for header in headers),
        stubs="\n".join(each.stub for each in signatures.values()),
        functions="\n".join(defined),
    )
    calls = tuple((name, tuple(_passed(launch))) for name, launch in zip(functions, launches, strict=True))
    return HostFunctions(host, "".join(f"{declaration};\n" for declaration in declared), calls)


def write_host(
    kernel: Kernel, launches: Sequence[WrittenLaunch], names: Mapping[str, str], label: str
) -> CudaHost:
    """Write what builds and launches a kernel; `names` are those of `NAMES` in the module, `label` the extension's.

    Raises HostCodeError.
    """
    functions = host_functions(kernel, launches)
    text = _MODULE.substitute(
        names,
        **{
            f"as_{each}": "" if names[each] == each else f" as {names[each]}"
            for each in ("functools", "torch", "load_inline")
        },
        device_text=raw_literal(device_text(kernel)),
        host_text=raw_literal(functions.text),
        declaration_text=raw_literal(functions.declarations),
        label=repr(label),
        function_names=repr([name for name, _ in functions.calls]),
    )
    statements = [f"{names['extension']}().{name}({', '.join(passed)})" for name, passed in functions.calls]
    return CudaHost(text, tuple(statements))


def _declaration(name: str, launch: WrittenLaunch) -> str:
    parameters = [f"int64_t {each}" for each in _GEOMETRY]
    parameters += [
        f"{_TYPES[argument.kind]} argument_{number}" for number, argument in enumerate(launch.arguments)
    ]
    return f"void {name}({', '.join(parameters)})"


def _definition(declaration: str, launch: WrittenLaunch, wanted: Signature) -> str:
    what = f"The launch of '{launch.kernel}'"
    if len(launch.arguments) != len(wanted.types):
        raise HostCodeError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(wanted.types)} parameters."
        )
    tensors = [f"argument_{n}" for n, each in enumerate(launch.arguments) if each.kind is Kind.BUFFER]
    if not tensors:
        raise HostCodeError(f"{what} has no buffer among its arguments.")
    passed = []
    for number, (argument, type_) in enumerate(zip(launch.arguments, wanted.types, strict=True)):
        is_pointer = type_.endswith("*")
        if is_pointer != (argument.kind is Kind.BUFFER):
            raise HostCodeError(f"{what}: argument {number + 1} doesn't fit a parameter of the type {type_}.")
        value = f"argument_{number}.data_ptr()" if is_pointer else f"argument_{number}"
        passed.append(f"static_cast<{type_}>({value})")
    return _HOST_FUNCTION.substitute(
        signature=declaration, tensor=tensors[0], kernel=launch.kernel, arguments=", ".join(passed)
    )


def _passed(launch: WrittenLaunch) -> list[str]:
    return [*launch.grid, *launch.block, launch.shared, *(each.source for each in launch.arguments)]
