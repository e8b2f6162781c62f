"""`mctskernel doctor`: what this machine can and can't do, and how to get what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import rich_click as click
from rich.table import Table
from rich.text import Text

from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import PlainConsole
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.isolation.confinement import REMEDIES, try_mechanisms

_PROBE = Kernel('extern "C" __global__ void probe(float* x) { x[threadIdx.x] += 1.0f; }\n')


@click.command()
def doctor() -> None:
    """List what this machine can do, what is missing, and how to get it.

    Exits with 5 when something that every search needs is missing.
    """
    table = Table(box=None, pad_edge=False)
    for heading in ("", "capability", "seen", "to get it"):
        table.add_column(heading, overflow="fold")
    can_search = True
    for capability, see, remedy, required in _PROBES:
        try:
            table.add_row(Text("yes", "green"), capability, Text(see()))
        except (ImportError, OSError, RuntimeError) as error:
            seen = (str(error).splitlines() or [type(error).__name__])[0]
            table.add_row(Text("no", "red" if required else "yellow"), capability, Text(seen), remedy)
            can_search &= not required
    for each in try_mechanisms():
        mark = Text("yes", "green") if each.in_force else Text("no", "yellow")
        remedy = "" if each.in_force else REMEDIES.get(each.name, "")
        table.add_row(mark, f"Confinement of candidates: {each.name}", Text(each.detail), remedy)
    PlainConsole().print(table)
    sys.exit(0 if can_search else BAD_MACHINE)


def _python() -> str:
    if (3, 11) <= sys.version_info < (3, 14):
        return platform.python_version()
    raise RuntimeError(platform.python_version())


def _processors() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{count} (the default for --workers)"


def _compiler() -> str:
    from mctskernel.profiling import build_cache
    from mctskernel.profiling.build import Build, build

    build_cache.disable()
    result = build(_PROBE, ("probe",))
    if not isinstance(result, Build):
        raise RuntimeError(result.message)
    return _package("nvidia-cuda-nvrtc")


def _imported(module: str) -> str:
    import_module(module)
    return _package(module.replace("_", "-"))


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} of this machine"


def _profiler() -> str:
    if path := shutil.which("ncu"):
        return path
    raise RuntimeError("not on the PATH")


def _called(module: str, name: str) -> str:
    """What a function of this package says, imported here because it may be missing."""
    return str(getattr(import_module(f"mctskernel.profiling.{module}"), name)())


_Probe = tuple[str, Callable[[], str], str, bool]
"""A capability, what is seen of it, how to get it, and whether every search needs it."""

_PROBES: tuple[_Probe, ...] = (
    ("Python 3.11 to 3.13", _python, "Install one of these versions.", True),
    ("CPU cores for evaluations", _processors, "", True),
    (
        "CUDA C++ compiler (NVRTC)",
        _compiler,
        "On Linux: pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime",
        True,
    ),
    (
        "Disassembler for the model (nvdisasm)",
        partial(_called, "machine_code.cubin", "find_nvdisasm"),
        "pip install nvidia-cuda-nvdisasm",
        True,
    ),
    ("Triton (--language triton)", partial(_imported, "triton"), "pip install 'mctskernel[triton]'", False),
    (
        "Rule library (tree-sitter)",
        partial(_imported, "tree_sitter_cuda"),
        "pip install tree-sitter tree-sitter-cuda",
        True,
    ),
    (
        "NVIDIA GPU (--device gpu)",
        partial(_called, "gpu.cuda_driver", "describe_gpu"),
        "Needs an NVIDIA GPU and its driver; without them, --device model works.",
        False,
    ),
    ("Nsight Compute (ncu)", _profiler, "Install NVIDIA Nsight Compute.", False),
)
