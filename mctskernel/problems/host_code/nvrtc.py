"""Host code of CUDA C++ kernels that NVRTC compiles on the first call, with the library that PyTorch brings.

It takes a second where `load_inline` takes a minute, and needs neither nvcc nor a C++ compiler. Launches go through the
driver, on PyTorch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from mctskernel.core.kernel import Kernel
from mctskernel.problems.host_code.cuda import TENSOR_MAP, signature
from mctskernel.problems.host_code.expressions import HostCodeError, raw_literal
from mctskernel.problems.host_code.launch import WrittenLaunch
from mctskernel.profiling.build import standalone, system_headers

IMPORTED = frozenset({"ctypes", "functools", "glob", "os", "torch"})
DEFINED = frozenset({"_HEADERS", "_SOURCE", "_TYPES", "_Config", "_check", "_functions", "_launch", "_map"})
"""The names that a module imports and defines."""

_MODULE = Template('''\
import ctypes
import functools
import glob
import os

import torch

_SOURCE = $source

# What NVRTC lacks.
_HEADERS = $headers

# Of each kernel the types of its parameters.
_TYPES = $types


class _Config(ctypes.Structure):
    """CUlaunchConfig of the driver."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def _check(library, prefix, status):
    if status:
        text = ctypes.c_char_p()
        if prefix == "nvrtc":
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            text.value = library.nvrtcGetErrorString(status)
        else:
            library.cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{prefix} failed: {(text.value or b'unknown error').decode()}")


@functools.cache
def _functions(device):
    """The kernels, compiled for a device, and the driver's library."""
    if device.type != "cuda":
        raise ValueError(f"The tensors are on {device}; this operator needs an NVIDIA GPU.")
    nvrtc = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
    driver = ctypes.CDLL("libcuda.so.1")
    major, minor = torch.cuda.get_device_capability(device)
    packages = os.path.dirname(os.path.dirname(torch.__file__))
    folders = glob.glob(os.path.join(packages, "nvidia", "*", "include"))
    folders += [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    options = [f"--gpu-architecture=sm_{major}{minor}{'a' if major >= 9 else ''}", "--std=c++17"]
    options += [f"-I{folder}{part}" for folder in folders for part in ("", "/cccl")]
    program = ctypes.c_void_p()
    texts, names = (
        (ctypes.c_char_p * len(_HEADERS))(*(each.encode() for each in part)) for part in (_HEADERS.values(), _HEADERS)
    )
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), _SOURCE.encode(), None, len(_HEADERS), texts, names)
    _check(nvrtc, "nvrtc", made)
    for name in _TYPES:
        _check(nvrtc, "nvrtc", nvrtc.nvrtcAddNameExpression(program, name.encode()))
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if nvrtc.nvrtcCompileProgram(program, len(options), given):
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"The kernel can't be compiled:\\n{log.value.decode(errors='replace')}")
    size = ctypes.c_size_t()
    _check(nvrtc, "nvrtc", nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    _check(nvrtc, "nvrtc", nvrtc.nvrtcGetCUBIN(program, cubin))
    module, found = ctypes.c_void_p(), {}
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # PyTorch's context exists from here on
        _check(driver, "CUDA", driver.cuModuleLoadData(ctypes.byref(module), cubin))
    for name in _TYPES:
        lowered, function = ctypes.c_char_p(), ctypes.c_void_p()
        _check(nvrtc, "nvrtc", nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)))
        _check(driver, "CUDA", driver.cuModuleGetFunction(ctypes.byref(function), module, lowered))
        found[name] = function
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return found, driver


def _map(tensor, extents, box, steps, swizzle, interleave, fill):
    """A tensor map for TMA; zeros where it can't read the tensor."""
    memory = (ctypes.c_uint64 * 32)()
    start = ctypes.addressof(memory) + -ctypes.addressof(memory) % 128
    extents = list(extents or tensor.shape)
    rank, item = len(extents), tensor.element_size()
    floats = {torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}
    strides = [item]
    for extent in extents[:0:-1]:
        strides.append(strides[-1] * extent)
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(start),
        floats.get(tensor.dtype, {1: 0, 2: 1, 4: 2, 8: 4}[item]),
        rank,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*extents[::-1]),
        (ctypes.c_uint64 * rank)(*strides[1:]),
        (ctypes.c_uint32 * rank)(*box[::-1]),
        (ctypes.c_uint32 * rank)(*(steps or [1] * rank)[::-1]),
        {0: 0, 16: 1, 32: 2}[interleave],
        {0: 0, 32: 1, 64: 2, 128: 3}[swizzle],
        2,
        int(fill == "nan"),
    )
    found = (ctypes.c_uint64 * 16)()
    if not status:
        ctypes.memmove(found, start, 128)
    return found


def _launch(device, name, grid, block, shared, arguments, cluster=None, programmatic=False):
    functions, driver = _functions(device)
    function, types = functions[name], _TYPES[name]
    values = [
        type_(each.data_ptr() if type_ is ctypes.c_void_p else each) if type_ else each
        for type_, each in zip(types, arguments)
    ]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
    if shared:
        _check(driver, "CUDA", driver.cuFuncSetAttribute(function, 8, shared))
    # CUlaunchAttribute: an identity, and a value of 64 bytes from the eighth on.
    attributes = (ctypes.c_uint * (18 * 2))()
    count = 0
    if cluster is not None:
        _check(driver, "CUDA", driver.cuFuncSetAttribute(function, 14, 1))
        attributes[0], attributes[2:5], count = 4, cluster, 1
    if programmatic:
        attributes[18 * count], attributes[18 * count + 2], count = 6, 1, count + 1
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        config = _Config(*grid, *block, shared, stream, ctypes.addressof(attributes), count)
        _check(driver, "CUDA", driver.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))
''')

_TYPES = {
    "bool": "c_bool",
    "char": "c_byte",
    "short": "c_short",
    "int": "c_int",
    "unsigned": "c_uint",
    "unsigned int": "c_uint",
    "long": "c_long",
    "long long": "c_longlong",
    "unsigned long": "c_ulong",
    "unsigned long long": "c_ulonglong",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def write_host(kernel: Kernel, launches: Sequence[WrittenLaunch], first: str) -> tuple[str, list[str]]:
    """The part of a module that compiles and launches, and the statement of each launch. Raises HostCodeError.

    `first` is the tensor on whose device kernels run.
    """
    types = {}
    for launch in launches:
        found = signature(kernel, launch.kernel).types
        if len(found) != len(launch.arguments):
            raise HostCodeError(
                f"The launch of '{launch.kernel}' has {len(launch.arguments)} arguments; the kernel has {len(found)} "
                "parameters."
            )
        for type_, argument in zip(found, launch.arguments, strict=True):
            kinds = (type_.endswith("*"), type_ == TENSOR_MAP)
            if kinds != (argument.is_buffer, argument.is_map) or not (any(kinds) or type_ in _TYPES):
                raise HostCodeError(
                    f"The launch of '{launch.kernel}' can't pass a parameter of the type {type_}."
                )
        names = (
            "None" if each == TENSOR_MAP else f"ctypes.{'c_void_p' if each.endswith('*') else _TYPES[each]}"
            for each in found
        )
        types[launch.kernel] = f"({''.join(f'{each}, ' for each in names).rstrip()})"
    written = ", ".join(f"{name!r}: {each}" for name, each in types.items())
    source = standalone(kernel.source)
    headers = "".join(
        f"\n    {name!r}: {raw_literal(each)}," for name, each in system_headers(source).items()
    )
    text = _MODULE.substitute(source=raw_literal(source), headers=f"{{{headers}}}", types=f"{{{written}}}")
    return text, [_statement(launch, first) for launch in launches]


def _statement(launch: WrittenLaunch, first: str) -> str:
    def listed(parts: Sequence[str]) -> str:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    words = [
        f"{first}.device",
        repr(launch.kernel),
        listed(launch.grid),
        listed(launch.block),
        launch.shared,
        listed([f"_map({each.source})" if each.is_map else each.source for each in launch.arguments]),
        *([f"cluster={listed(launch.cluster)}"] if launch.cluster else []),
        *(["programmatic=True"] if launch.programmatic else []),
    ]
    return f"_launch({', '.join(words)})"
