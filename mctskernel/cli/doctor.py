"""`mctskernel doctor`: what this machine can and can't do, and how to get what is missing."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import rich_click as click
from rich.table import Table
from rich.text import Text

from mctskernel.cli.errors import BAD_MACHINE
from mctskernel.cli.plain_console import PlainConsole, deliver_json
from mctskernel.core.kernel import Kernel
from mctskernel.executors import workers_on
from mctskernel.profiling.isolation.confinement import REMEDIES, try_mechanisms
from mctskernel.tasks.builtin import DEFAULT_TASK

_PROBE = Kernel('extern "C" __global__ void probe(float* x) { x[threadIdx.x] += 1.0f; }\n')


@dataclass(frozen=True)
class Capability:
    """What this machine can do or not, what is seen of it, how to get it, and whether every search needs it."""

    name: str
    remedy: str = ""
    required: bool = False
    present: bool = False
    seen: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, as_json: bool) -> None:
    """List what this machine can do, what is missing, and how to get it; the last lines say what to do next.

    Exits with 5 when something that every search needs is missing.
    """
    found = [_tried(*probe) for probe in _PROBES]
    confined = [
        Capability(
            f"Confinement of candidates: {each.name}",
            REMEDIES.get(each.name, ""),
            present=each.in_force,
            seen=each.detail,
        )
        for each in try_mechanisms()
    ]
    can_search = all(each.present for each in found if each.required)
    verdict = _verdict(found, [each for each in confined if not each.present])
    if as_json:
        deliver_json({"can_search": can_search, "verdict": verdict, "capabilities": [*found, *confined]})
        sys.exit(0 if can_search else BAD_MACHINE)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "capability", "seen", "to get it"):
        table.add_column(heading, overflow="fold")
    for each in (*found, *confined):
        mark = Text("yes", "green") if each.present else Text("no", "red" if each.required else "yellow")
        table.add_row(mark, Text(each.name), Text(each.seen), Text("" if each.present else each.remedy))
    console = PlainConsole()
    console.print(table)
    console.print(Text(f"\n{verdict}", "bold"))
    sys.exit(0 if can_search else BAD_MACHINE)


def _tried(see: Callable[[], str], capability: Capability) -> Capability:
    try:
        return replace(capability, present=True, seen=see())
    except (ImportError, OSError, RuntimeError) as error:
        return replace(capability, seen=(str(error).splitlines() or [type(error).__name__])[0])


def _verdict(found: Sequence[Capability], unconfined: Sequence[Capability]) -> str:
    """What can be done here, and the one command to go on with."""
    missing = [each for each in found if each.required and not each.present]
    if missing:
        return f"Nothing can be searched yet. First: {missing[0].remedy}"
    has_gpu = any(each.name == GPU and each.present for each in found)
    where = "on this GPU" if has_gpu else "on a model of an H100, as there is no GPU here; times are modelled"
    warning = " Search untrusted kernels only in a container." if unconfined else ""
    return f"Ready to search {where}.{warning}\nNext: mctskernel search {DEFAULT_TASK}"


def _python() -> str:
    if (3, 11) <= sys.version_info < (3, 14):
        return platform.python_version()
    raise RuntimeError(platform.python_version())


def _processors() -> str:
    return f"{workers_on('model')} (the default for --workers)"


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


GPU = "NVIDIA GPU (--device gpu)"

_PROBES = (
    (_python, Capability("Python 3.11 to 3.13", "Install one of these versions.", required=True)),
    (_processors, Capability("CPU cores for evaluations", required=True)),
    (
        _compiler,
        Capability(
            "CUDA C++ compiler (NVRTC)",
            "On Linux: pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime",
            required=True,
        ),
    ),
    (
        partial(_called, "machine_code.cubin", "find_nvdisasm"),
        Capability(
            "Disassembler for the model (nvdisasm)", "pip install nvidia-cuda-nvdisasm", required=True
        ),
    ),
    (
        partial(_imported, "triton"),
        Capability("Triton (--language triton)", "pip install 'mctskernel[triton]'"),
    ),
    (
        partial(_imported, "tree_sitter_cuda"),
        Capability("Rule library (tree-sitter)", "pip install tree-sitter tree-sitter-cuda", required=True),
    ),
    (
        partial(_called, "gpu.cuda_driver", "describe_gpu"),
        Capability(GPU, "Needs an NVIDIA GPU and its driver; without them, --device model works."),
    ),
    (_profiler, Capability("Nsight Compute (ncu)", "Install NVIDIA Nsight Compute.")),
)
