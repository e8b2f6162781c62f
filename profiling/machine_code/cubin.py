"""What machine code says of itself: sections of the ELF file, registers, stack, spills. Starts no process.

The attributes of `.nv.info` and the encodings of local loads and stores are as `cuobjdump -elf` and `nvdisasm -hex`
print them for Volta to Blackwell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mctskernel.core.evaluation import Resources

INSTRUCTION_BYTES = 16

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


def architecture(image: bytes) -> int:
    """The compute capability, times ten, that a cubin is for: 90 for sm_90. From the flags of its ELF header."""
    (flags,) = struct.unpack_from("<I", image, 48)
    return int(flags >> 8 & 0xFF if image[_ABI_VERSION] >= _ABI_OF_CUDA_13 else flags & 0xFF)


_ABI_VERSION, _ABI_OF_CUDA_13 = 8, 8


def resources(image: bytes, function: str) -> Resources:
    """The report on the one kernel of a cubin, as `ptxas -v` gives it: spills are its accesses to local memory.

    Shared memory is not in it: the section's size can't be told from what the driver reserves for itself. Raises
    CubinError.
    """
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
