"""One NVRTC compilation, which gives PTX, machine code and the log. Needs neither a GPU nor its driver.

cuda-core's `Program` compiles too, but gives one product a compilation, and imports the driver's bindings and NVML
for it: a quarter of the time in which a worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import nvrtc


@dataclass(frozen=True)
class Compiled:
    """What the compiler made, and what it said."""

    ptx: str
    cubin: bytes
    log: str


def compile_source(source: str, name: str, options: Sequence[str]) -> Compiled | str:
    """Compile CUDA C++ for a named architecture (`-arch=sm_90`), called `name` in messages; the log when it is refused.

    Raises RuntimeError when the compiler is missing or broken.
    """
    program = _checked(*nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        words = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = _text(_product(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return log or status.name
        cubin = _product(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return Compiled(_text(_product(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)), cubin, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _product(size_of: Callable[..., Any], write: Callable[..., Any], program: object) -> bytes:
    product = bytearray(_checked(*size_of(program)))
    (status,) = write(program, product)
    _checked(status, None)
    return bytes(product)


def _checked(status: Any, value: Any) -> Any:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC failed: {status.name}.")
    return value


def _text(product: bytes) -> str:
    return product.rstrip(b"\0").decode(errors="replace")
