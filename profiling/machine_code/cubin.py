"""What a cubin holds: sections, registers, stack and spills from the ELF file itself, and instructions by `nvdisasm`.

nvdisasm takes 0.3 s of one core, nearly all of it to start, so it runs while the caller does something else
(`disassembling`).

The attributes of `.nv.info` and the encodings of local loads and stores are as `cuobjdump -elf` and `nvdisasm -hex`
print them for Volta to Blackwell.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuda.pathfinder import find_nvidia_binary_utility

from mctskernel.core.documents import excerpt
from mctskernel.core.evaluation import Resources
from mctskernel.profiling.machine_code.functions import INSTRUCTION_BYTES, NO_BARRIER, Function, Instruction

_NO_BITS = 8
_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11
_SIZED_VALUE = 4

_LOAD_LOCAL, _STORE_LOCAL = 0x983, 0x387
_ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)


class CubinError(ValueError):
    """Bytes that are no cubin, or a damaged one; the message is a sentence."""


@dataclass(frozen=True)
class Section:
    """A section's size and its bytes, of which one that is only reserved has none."""

    size: int
    data: bytes


@contextmanager
def cubin_errors() -> Iterator[None]:
    """What reading damaged machine code raises, as CubinError: every offset in it may be anything."""
    try:
        yield
    except CubinError:
        raise
    except (struct.error, ValueError, LookupError, ArithmeticError) as error:
        raise CubinError(f"The machine code is damaged: {error}.") from error


def sections(image: bytes) -> Mapping[str, Section]:
    """The sections of an ELF64 file by name. Raises CubinError."""
    with cubin_errors():
        return _sections(image)


def _sections(image: bytes) -> Mapping[str, Section]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names_index = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, table + size * index) for index in range(count)]
    names = headers[names_index][4]
    found = {}
    for name_offset, kind, _, _, offset, length in headers:
        at = names + name_offset
        name = image[at : image.index(b"\0", at)].decode()
        found[name] = Section(length, b"" if kind == _NO_BITS else image[offset : offset + length])
    return found


def resources(image: bytes, function: str) -> Resources:
    """What `ptxas -v` reports of a cubin's kernel, without shared memory. Raises CubinError."""
    with cubin_errors():
        found = _sections(image)
        attributes = dict(_attributes(found[".nv.info"].data))
        loads, stores = _local_bytes(found[f".text.{function}"].data)
    return Resources(
        kernel=function,
        registers=attributes.get(_REGISTER_COUNT, 0),
        shared_bytes=0,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=attributes.get(_FRAME_SIZE, 0),
    )


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """Each attribute of a function with its value, from `.nv.info`."""
    at = 0
    while at + 4 <= len(data):
        layout, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if layout != _SIZED_VALUE:
            continue
        if size == 8:
            _, value = struct.unpack_from("<II", data, at)
            yield kind, value
        at += size


def _local_bytes(code: bytes) -> tuple[int, int]:
    """Bytes that a thread loads from and stores to local memory, each instruction once."""
    loads = stores = 0
    for at in range(0, len(code) - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES):
        low, high = struct.unpack_from("<QQ", code, at)
        opcode = low & 0xFFF
        if opcode == _LOAD_LOCAL:
            loads += _ACCESS_BYTES[high >> 9 & 7]
        elif opcode == _STORE_LOCAL:
            stores += _ACCESS_BYTES[high >> 9 & 7]
    return loads, stores


SOURCE_FILES = frozenset({"kernel.cu", "kernel.py"})  # the names that the compilers give a kernel's own file


LIMIT_SECONDS = 60.0


class DisassemblerError(RuntimeError):
    """`nvdisasm` is missing or failed; the message is a sentence that says what to do."""


@contextmanager
def disassembling(cubin: bytes) -> Iterator[Callable[[], Mapping[str, Function]]]:
    """Disassemble while the block runs, which is given the functions to wait for. Raises DisassemblerError."""
    program = find_nvdisasm()
    # A pipe would stall nvdisasm until somebody reads.
    with tempfile.NamedTemporaryFile(suffix=".cubin") as image, tempfile.TemporaryFile() as output:
        image.write(cubin)
        image.flush()
        command = [program, "-c", "-ndf", "-g", "-gp", image.name]  # no data-flow analysis
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

        def result() -> Mapping[str, Function]:
            try:
                status = process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise DisassemblerError(f"nvdisasm did not finish in {LIMIT_SECONDS:g} s.") from error
            output.seek(0)
            text = output.read().decode(errors="replace")
            if status:
                raise DisassemblerError(f"nvdisasm failed with status {status}: {text.strip()[:200]}")
            return parse(text, cubin)

        try:
            yield result
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def disassemble(cubin: bytes) -> Mapping[str, Function]:
    with disassembling(cubin) as result:
        return result()


def parse(text: str, cubin: bytes) -> Mapping[str, Function]:
    """Read `nvdisasm -c -g -gp`; stalls and scoreboards come from the cubin's own bytes. Raises DisassemblerError."""
    functions = {}
    try:
        with cubin_errors():
            found = sections(cubin)
            for name, listing in _listings(text):
                functions[name] = Function(name, tuple(_instructions(listing, found[f".text.{name}"].data)))
    except CubinError as error:
        raise DisassemblerError(
            f"What nvdisasm wrote doesn't fit the machine code: {excerpt(error)}"
        ) from error
    if not functions:
        raise DisassemblerError(f"nvdisasm found no code: {text.strip()[:200]}")
    return functions


@cache
def find_nvdisasm() -> str:
    """The path of NVIDIA's disassembler. Raises DisassemblerError when there is none."""
    found = find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise DisassemblerError(
            "nvdisasm was not found; 'pip install nvidia-cuda-nvdisasm' brings it (6 MB, no GPU needed)."
        )
    return str(Path(found))


_SECTION = re.compile(r"^[ \t]*+\.section[ \t]++\.text\.([^,\s]++),.*$", re.M)
# Nothing here spans lines or is tried in two ways: names are a candidate's, and may be chosen to take forever.
_LINE = re.compile(
    r'//## File "(?P<file>[^"\n]*+)", line (?P<line>\d++)'
    r"|^(?P<label>\.L_\w++|\$[\w$]++):"
    r"|^[ \t]*+/\*(?P<address>[0-9a-f]{4,16})\*/[ \t]++(?:@(?P<predicate>!?U?P\w++)[ \t]++)?+"
    r"(?P<opcode>[A-Z][^\s;]*+)(?P<operands>[^;\n]*+);",
    re.M,
)


def _listings(text: str) -> Iterator[tuple[str, str]]:
    found = list(_SECTION.finditer(text))
    ends = [section.start() for section in found[1:]] + [len(text)] * bool(found)
    for section, end in zip(found, ends, strict=True):
        yield section[1], text[section.end() : end]


def _instructions(listing: str, code: bytes) -> Iterator[Instruction]:
    entries = list(_LINE.finditer(listing))
    targets = _label_addresses(entries)
    line: int | None = None
    ptx_line: int | None = None
    for entry in entries:
        if entry["line"]:
            name = entry["file"].rpartition("/")[2]
            if name == ".nv_debug_ptx_txt":
                ptx_line = int(entry["line"])
            else:
                line = int(entry["line"]) if name in SOURCE_FILES else None
        elif entry["address"]:
            address = int(entry["address"], 16)
            operands = entry["operands"].strip()
            label = re.search(r"`\((\.L_\w++|\$[\w$]++)\)", operands)
            control = _control_bits(code, address)
            yield Instruction(
                address,
                entry["predicate"] or "",
                entry["opcode"],
                operands,
                line,
                ptx_line,
                targets.get(label[1]) if label else None,
                control & 0xF,
                control >> 5 & 7,
                control >> 8 & 7,
                tuple(barrier for barrier in range(6) if control >> (11 + barrier) & 1),
            )


def _label_addresses(entries: Sequence[re.Match[str]]) -> dict[str, int]:
    addresses: dict[str, int] = {}
    waiting: list[str] = []
    for entry in entries:
        if entry["label"]:
            waiting.append(entry["label"])
        elif entry["address"]:
            addresses.update(dict.fromkeys(waiting, int(entry["address"], 16)))
            waiting.clear()
    return addresses


def _control_bits(code: bytes, offset: int) -> int:
    """The 21 scheduling bits of a 128-bit instruction (Volta and later).

    From the lowest: 4 bits stall, 1 yield, 3 barrier on write, 3 barrier on read, 6 wait mask, 4 reuse. The
    layout is in Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018.
    """
    if offset + INSTRUCTION_BYTES > len(code):
        return 1 | NO_BARRIER << 5 | NO_BARRIER << 8
    (high,) = struct.unpack_from("<Q", code, offset + 8)
    return int(high >> 41)
