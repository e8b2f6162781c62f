"""CUDA C++ to PTX with NVRTC; neither a driver nor a GPU is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions
from cuda.pathfinder import find_nvidia_header_directory

from mctskernel.profiling.emulator import Module, parse_ptx


@functools.cache
def compile_cuda(source: str, arch: str = "sm_90") -> Module:
    options = ProgramOptions(
        arch=arch,
        std="c++17",
        lineinfo=True,
        name="kernel.cu",
        include_path=[str(find_nvidia_header_directory("cudart"))],
    )
    program = Program(source, "c++", options)
    program.compile("cubin")
    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytearray(size)
    nvrtc.nvrtcGetPTX(program.handle, text)
    return parse_ptx(bytes(text).rstrip(b"\0").decode())


@pytest.fixture
def cuda() -> Callable[..., Module]:
    """The compiler, cached by source and architecture."""
    return compile_cuda
