"""What this machine can and can't do, and how to get what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass

from mctskernel.core.device import DeviceError
from mctskernel.core.kernel import Kernel

_PROBE = Kernel('extern "C" __global__ void probe(float* x) { x[threadIdx.x] += 1.0f; }\n')


@dataclass(frozen=True)
class Present:
    """A capability that this machine has, and what was seen of it."""

    capability: str
    detail: str


@dataclass(frozen=True)
class Missing:
    """A capability that is missing, why, and how to get it; `required` when every search needs it."""

    capability: str
    detail: str
    remedy: str
    required: bool = True


Finding = Present | Missing


def examine() -> tuple[Finding, ...]:
    """Try everything once; takes a second or two. Never raises for something that is missing."""
    probes = (_python, _processors, _compiler, _disassembler, _triton, _syntax_trees, _gpu, _profiler)
    return (*(probe() for probe in probes), *_isolation())


def _python() -> Finding:
    capability, version = "Python 3.11 to 3.13", platform.python_version()
    if (3, 11) <= sys.version_info < (3, 14):
        return Present(capability, version)
    return Missing(capability, version, "Install one of these versions.")


def _processors() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Present("CPU cores for evaluations", f"{count} (the default for --workers)")


def _compiler() -> Finding:
    capability = "CUDA C++ compiler (NVRTC)"
    remedy = "On Linux: pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime"
    try:
        from mctskernel.profiling import build_cache
        from mctskernel.profiling.build import Build, build

        build_cache.disable()
        result = build(_PROBE, ("probe",))
    except (RuntimeError, OSError, ImportError) as error:
        return Missing(capability, _first_line(error), remedy)
    if isinstance(result, Build):
        return Present(capability, f"nvidia-cuda-nvrtc {_version('nvidia-cuda-nvrtc')}")
    return Missing(capability, result.message, remedy)


def _disassembler() -> Finding:
    from mctskernel.profiling.machine_code.cubin import DisassemblerError, find_nvdisasm

    capability = "Disassembler for the model (nvdisasm)"
    try:
        return Present(capability, find_nvdisasm())
    except DisassemblerError as error:
        return Missing(capability, _first_line(error), "pip install nvidia-cuda-nvdisasm")


def _triton() -> Finding:
    capability = "Triton (--language triton)"
    if importlib.util.find_spec("triton") is None:
        return Missing(capability, "not installed", "pip install 'mctskernel[triton]'", required=False)
    return Present(capability, f"triton {_version('triton')}")


def _syntax_trees() -> Finding:
    capability = "Rule library (tree-sitter)"
    if importlib.util.find_spec("tree_sitter_cuda") is None:
        return Missing(capability, "not installed", "pip install tree-sitter tree-sitter-cuda")
    return Present(capability, f"tree-sitter-cuda {_version('tree-sitter-cuda')}")


def _gpu() -> Finding:
    capability = "NVIDIA GPU (--device gpu)"
    try:
        from mctskernel.profiling.gpu.cuda_driver import describe_gpu

        return Present(capability, describe_gpu())
    except (DeviceError, ImportError) as error:
        remedy = "Needs an NVIDIA GPU and its driver; without them, --device model works."
        return Missing(capability, _first_line(error), remedy, required=False)


def _profiler() -> Finding:
    capability = "Nsight Compute (ncu)"
    path = shutil.which("ncu")
    if path is None:
        return Missing(capability, "not on the PATH", "Install NVIDIA Nsight Compute.", required=False)
    return Present(capability, path)


def _isolation() -> tuple[Finding, ...]:
    from mctskernel.profiling.isolation.confinement import coverage

    return tuple(
        Present(f"Candidates kept from: {each.name}", each.detail)
        if each.covered
        else Missing(f"Candidates kept from: {each.name}", each.detail, each.remedy, required=False)
        for each in coverage()
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of this machine"
