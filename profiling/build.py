"""From CUDA C++ to PTX and machine code, with the compiler's report. Needs neither a GPU nor its driver.

NVRTC is called directly: cuda-core's `Program` gives one product a compilation, and imports the driver's bindings and
NVML, a quarter of the time in which a worker starts.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
from cuda.bindings import nvrtc
from cuda.pathfinder import find_nvidia_header_directory

from mctskernel.core.evaluation import Resources
from mctskernel.core.kernel import Kernel
from mctskernel.profiling import build_cache
from mctskernel.profiling.versions import NOT_INSTALLED, package_versions

# No such folder: a quoted #include has no directory of this machine to be looked for in.
_FOLDER = "/candidate"
_FILE = "kernel.cu"

# What NVRTC lacks of C and C++ and kernels for nvcc include: types, limits, constants, traits.
_SYSTEM_HEADERS = Path(__file__).parent / "system_headers"
_OWN_HEADERS = Path(__file__).parent / "headers"  # what kernels may include of ours
RECENT = 4  # compilations that are kept in memory


@dataclass(frozen=True)
class Build:
    """The products of compiling a kernel. `entries` maps the plan's kernel names to names in PTX and cubin.

    `resources` has one entry for each `__global__` function, called as in the plan where the plan names it.
    Lines in the log, in the PTX's line table and in the machine code's are lines of the kernel's source.
    """

    architecture: str
    ptx: str
    cubin: bytes
    entries: Mapping[str, str]
    resources: tuple[Resources, ...]
    log: str

    def resources_of(self, kernel: str) -> Resources:
        """The compiler's report on one of the plan's kernels."""
        return next(found for found in self.resources if found.kernel == kernel)


@dataclass(frozen=True)
class BuildFailure:
    """Why a kernel could not be built: the first error as a sentence, and the compiler's whole log."""

    message: str
    log: str


def build(kernel: Kernel, names: Sequence[str], architecture: str = "sm_90") -> Build | BuildFailure:
    """Compile a CUDA C++ kernel for a named architecture; `names` are the functions that its plan launches.

    For `compute_90` there is PTX alone, without machine code and its resources.

    Raises RuntimeError when the compiler itself is missing or broken.
    """
    product = _compile(kernel.source, architecture)
    if isinstance(product, str):
        return BuildFailure(_first_error(product), product)
    entries = _entries(names, _ENTRY.findall(product.ptx))
    if isinstance(entries, str):
        return BuildFailure(entries, product.log)
    plan_names = {entry: name for name, entry in entries.items()}
    resources = tuple(_resources(product.log, plan_names))
    return Build(architecture, product.ptx, product.cubin, entries, resources, product.log)


def _options(architecture: str) -> tuple[str, ...]:
    return (
        f"-arch={_with_own_instructions(architecture)}",
        "--std=c++17",
        "--generate-line-info",
        "--ptxas-options=-v",
        # Products from NVRTC's own cache on disk come without the report of -v.
        "--no-cache",
        *(f"--include-path={folder}" for folder in _include_folders()),
    )


def _with_own_instructions(architecture: str) -> str:
    """The name under which NVRTC also takes what only this architecture has: `sm_90a` for wgmma."""
    return f"{architecture}a" if re.fullmatch(r"(sm|compute)_(9|1[0-9])[0-9]", architecture) else architecture


@cache
def header_folders() -> tuple[str, ...]:
    """The folders of CUDA's own headers: fp16, mma, cooperative groups; and libcu++."""
    found = (find_nvidia_header_directory("cudart"), find_nvidia_header_directory("cccl"))
    folders = tuple(folder for folder in found if folder)
    if any((Path(folder) / "crt" / "mma.h").is_file() for folder in folders):
        return folders
    # PyTorch brings the runtime's headers without those that mma.h includes; a toolkit has them all.
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    return (*folders, str(toolkit)) if (toolkit / "crt" / "mma.h").is_file() else folders


def _include_folders() -> tuple[str, ...]:
    # Ours first: NVIDIA has a cuda.h too.
    return (str(_SYSTEM_HEADERS), str(_OWN_HEADERS), *header_folders())


def standalone(source: str) -> str:
    """A source with the text of our own headers in place of their `#include`, for compilers that don't have them."""
    # Those that include others come first.
    for file in sorted(_OWN_HEADERS.iterdir(), key=lambda each: '#include "' not in each.read_text("utf-8")):
        text = file.read_text(encoding="utf-8").replace("#pragma once\n", "")
        include = rf"^[ \t]*#[ \t]*include[ \t]*[<\"]{re.escape(file.name)}[>\"][^\n]*"
        before, *after = re.split(include, source, flags=re.M)
        source = text.join((before, "".join(after))) if after else before
    return source


def system_headers(source: str) -> dict[str, str]:
    """The texts of the headers that a source includes, and those include, of the ones that NVRTC lacks."""
    found: dict[str, str] = {}
    for name in re.findall(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([\w.]+)[>\"]", source, flags=re.M):
        if (_SYSTEM_HEADERS / name).is_file():
            text = (_SYSTEM_HEADERS / name).read_text(encoding="utf-8")
            found |= {name: text, **system_headers(text)}
    return found


@lru_cache(RECENT)
def _compile(source: str, architecture: str) -> Compiled | str:
    """The compiler's products, or its log when it refused the source."""
    if "\0" in source:
        return f"{_FILE}(1): error: the source holds a NUL character"
    options = _options(architecture)
    key = build_cache.Key(source, options, _compiler())
    if (product := build_cache.load(key)) is not None:
        return msgspec.msgpack.decode(product, type=Compiled)
    made = compile_source(source, f"{_FOLDER}/{_FILE}", options)
    if isinstance(made, str):
        return _without_paths(made).strip()
    compiled = Compiled(_without_paths(made.ptx), made.cubin, _without_paths(made.log))
    build_cache.store(key, msgspec.msgpack.encode(compiled))
    return compiled


@cache
def _compiler() -> str:
    """NVRTC's version, and what identifies the headers."""
    headers = [
        hashlib.sha256(file.read_bytes()).hexdigest()
        for folder in (_SYSTEM_HEADERS, _OWN_HEADERS)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    installed = [f"{folder} {Path(folder).stat().st_mtime_ns}" for folder in header_folders()]
    return " ".join(("nvrtc", nvrtc_version(), *installed, *headers))


def _without_paths(text: str) -> str:
    text = text.replace("\0", "")
    for folder in _include_folders():
        text = text.replace(f"{folder}/", "")
    return text.replace(f"{_FOLDER}/", "")


_ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", re.MULTILINE)


def _entries(names: Iterable[str], entries: list[str]) -> dict[str, str] | str:
    """The entry of each of the plan's kernels, or a sentence about one that has none."""
    found: dict[str, str] = {}
    for name in names:
        mangled = f"_Z{len(name)}{name}"
        matches = [e for e in entries if e == name] or [e for e in entries if e.startswith(mangled)]
        if len(matches) > 1:
            return f"The launch plan's kernel '{name}' is ambiguous: {', '.join(matches)}."
        if not matches:
            has = ", ".join(readable_name(entry) for entry in entries) or "none"
            return (
                f"The launch plan names the kernel '{name}', which the source doesn't define "
                f"(__global__ functions in it: {has})."
            )
        found[name] = matches[0]
    return found


def readable_name(entry: str) -> str:
    """A function's own name from its mangled one, without parameters: `_Z7softmaxPKfPf` is `softmax`."""
    match = re.match(r"_Z(\d+)(\w+)", entry)
    return match[2][: int(match[1])] if match else entry


_ERROR = re.compile(
    r"^(?:(?P<file>[^\s(]+)\((?P<line>\d+)\): )?(?:catastrophic )?error\s*: (?P<text>.+)$", re.M
)
_PTXAS_ERROR = re.compile(r"^\s*ptxas\s+(?:error|fatal)\s*: (?P<text>.+)$", re.M)


def _first_error(log: str) -> str:
    match = _ERROR.search(log) or _PTXAS_ERROR.search(log)
    if match is None:
        first = next((line.strip() for line in log.splitlines() if line.strip()), "")
        return f"The compiler failed: {first}" if first else "The compiler failed without a message."
    text = match["text"].strip()
    place = match.groupdict()
    if place.get("line") is None:
        return f"ptxas: {_READABLE.sub(lambda name: readable_name(name[0]), text)}."
    where = f"Line {place['line']}" if place["file"] == _FILE else f"{place['file']}, line {place['line']}"
    return f"{where}: {text}."


_READABLE = re.compile(r"\b_Z\d+\w+")

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<entry>[^']+)' for '\w+'(?P<report>.*?)(?=Compiling entry|\Z)", re.S
)
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def _resources(log: str, plan_names: Mapping[str, str]) -> Iterable[Resources]:
    for function in _FUNCTION.finditer(log):
        report = function["report"]
        frame = _FRAME.search(report)
        stack, stores, loads = (int(number) for number in frame.groups()) if frame else (0, 0, 0)
        registers, shared = _REGISTERS.search(report), _SHARED.search(report)
        yield Resources(
            kernel=plan_names.get(function["entry"], readable_name(function["entry"])),
            registers=int(registers[1]) if registers else 0,
            shared_bytes=int(shared[1]) if shared else 0,
            spill_store_bytes=stores,
            spill_load_bytes=loads,
            stack_bytes=stack,
        )


@dataclass(frozen=True)
class Compiled:
    """The products of a compilation, and the compiler's log."""

    ptx: str
    cubin: bytes
    log: str


def compile_source(source: str, name: str, options: Sequence[str]) -> Compiled | str:
    """Compile CUDA C++ (`-arch=sm_90`); the log when it is refused. Raises RuntimeError without a compiler."""
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


def nvrtc_version() -> str:
    """The compiler's version; that of its package where there is one, without loading the compiler."""
    installed = package_versions("nvidia-cuda-nvrtc")["nvidia-cuda-nvrtc"]
    if installed != NOT_INSTALLED:
        return installed
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


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
