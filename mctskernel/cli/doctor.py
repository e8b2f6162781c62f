"""`mctskernel doctor`: what this machine can and can't do, and how to get what is missing."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    present: bool
    seen: str
    remedy: str = ""
    required: bool = False


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, as_json: bool) -> None:
    """List what this machine can do, what is missing, and how to get it; the last lines say what to do next.

    Exits with 5 when something that every search needs is missing.
    """
    found = [_tried(*probe) for probe in _PROBES]
    confined = [
        Capability(
            f"Confinement of candidates: {each.name}", each.in_force, each.detail, REMEDIES.get(each.name, "")
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


def _tried(name: str, see: Callable[[], str], remedy: str, required: bool) -> Capability:  # noqa: FBT001
    try:
        return Capability(name, present=True, seen=see(), required=required)
    except (ImportError, OSError, RuntimeError) as error:
        seen = (str(error).splitlines() or [type(error).__name__])[0]
        return Capability(name, present=False, seen=seen, remedy=remedy, required=required)


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
        GPU,
        partial(_called, "gpu.cuda_driver", "describe_gpu"),
        "Needs an NVIDIA GPU and its driver; without them, --device model works.",
        False,
    ),
    ("Nsight Compute (ncu)", _profiler, "Install NVIDIA Nsight Compute.", False),
)
