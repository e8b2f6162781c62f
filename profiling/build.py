"""From CUDA C++ to PTX and machine code, with the compiler's report. Needs neither a GPU nor its driver.

One NVRTC compilation gives both: the machine code comes from cuda-core's `Program`, the PTX from the same
NVRTC handle, because asking `Program` for PTX would compile again and load the driver.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions
from cuda.core._utils.cuda_utils import NVRTCError
from cuda.core.utils import ProgramCacheResource, make_program_cache_key
from cuda.pathfinder import find_nvidia_header_directory

from mctskernel.core.evaluation import Resources
from mctskernel.core.kernel import Kernel

# No such folder: a quoted #include has no directory of this machine to be looked for in.
_FOLDER = "/candidate"
_FILE = "kernel.cu"

# What NVRTC lacks of C and C++ and kernels for nvcc include: types, limits, constants, traits.
_SYSTEM_HEADERS = Path(__file__).parent / "system_headers"


@dataclass(frozen=True)
class Build:
    """What the compiler made of a kernel. `entries` maps the plan's kernel names to names in PTX and cubin.

    `resources` has one entry for each `__global__` function, called as in the plan where the plan names it.
    Lines in the log, in the PTX's line table and in the machine code's are lines of the kernel's source.
    """

    architecture: str
    ptx: str
    cubin: bytes
    entries: Mapping[str, str]
    resources: tuple[Resources, ...]
    log: str
    seconds: float

    def resources_of(self, kernel: str) -> Resources:
        """The report on one of the plan's kernels."""
        return next(found for found in self.resources if found.kernel == kernel)


@dataclass(frozen=True)
class BuildFailure:
    """Why a kernel could not be built: the first error as a sentence, and the compiler's whole log."""

    message: str
    log: str
    seconds: float = 0.0


def build(
    kernel: Kernel,
    names: Sequence[str],
    architecture: str = "sm_90",
    cache: ProgramCacheResource | None = None,
) -> Build | BuildFailure:
    """Compile a CUDA C++ kernel for a named architecture; `names` are the functions that its plan launches.

    A search never builds the same text twice, so `cache` (one of cuda-core's) only helps across runs. Raises
    cuda-core's errors when the compiler itself is missing or broken.
    """
    began = time.perf_counter()
    options = _options(architecture)
    key = _key(kernel.source, options) if cache is not None else b""
    found = cache.get(key) if cache is not None else None
    if found is not None:
        product = msgspec.msgpack.decode(found, type=_Product)
    else:
        compiled = _compile(kernel.source, options)
        if isinstance(compiled, str):
            return BuildFailure(_first_error(compiled), compiled, time.perf_counter() - began)
        product = compiled
        if cache is not None:
            cache[key] = msgspec.msgpack.encode(product)
    entries = _entries(names, _ENTRY.findall(product.ptx))
    if isinstance(entries, str):
        return BuildFailure(entries, product.log, time.perf_counter() - began)
    plan_names = {entry: name for name, entry in entries.items()}
    resources = tuple(_resources(product.log, plan_names))
    return Build(
        architecture, product.ptx, product.cubin, entries, resources, product.log, time.perf_counter() - began
    )


class _Product(msgspec.Struct):
    ptx: str
    cubin: bytes
    log: str


def _options(architecture: str) -> ProgramOptions:
    return ProgramOptions(
        name=f"{_FOLDER}/{_FILE}",
        arch=architecture,
        std="c++17",
        lineinfo=True,
        ptxas_options=["-v"],
        # NVRTC keeps a cache on disk, and what comes from there comes without the report of -v.
        no_cache=True,
        include_path=list(_include_folders()),
    )


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
    return (*header_folders(), str(_SYSTEM_HEADERS))


@cache
def _header_versions() -> bytes:
    names = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
    versions = []
    for name in names:
        try:
            versions.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            versions.append("")
    own = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(_SYSTEM_HEADERS.iterdir())]
    return "\n".join((*header_folders(), *versions, *own)).encode()


def _key(source: str, options: ProgramOptions) -> bytes:
    key: bytes = make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=b"ptx, cubin and log\n" + _header_versions(),
    )
    return key


def _compile(source: str, options: ProgramOptions) -> _Product | str:
    """What the compiler made, or its log when it refused."""
    if "\0" in source:
        return f"{_FILE}(1): error: the source holds a NUL character"
    log = io.StringIO()
    program = Program(source, "c++", options)
    try:
        cubin = program.compile("cubin", logs=log)
        return _Product(_without_paths(_ptx(program)), bytes(cubin.code), _without_paths(log.getvalue()))
    except NVRTCError as error:
        text = str(error)
        _, found, compiler_log = text.partition("compilation log:")
        return _without_paths(compiler_log if found else text).strip()
    finally:
        program.close()


def _ptx(program: Program) -> str:
    status, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytearray(size)
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        (status,) = nvrtc.nvrtcGetPTX(program.handle, text)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC gave no PTX: {status.name}.")
    return text.rstrip(b"\0").decode(errors="replace")


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
