"""What the constant banks of a launch hold: extents, parameters, and the data that a cubin brings."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from mctskernel.profiling.emulator.lanes import Geometry
from mctskernel.profiling.machine_code.cubin import cubin_errors, sections

_HOPPER_PARAMETERS = 0x210
_PARAMETERS = 0x0A  # EIATTR_PARAM_CBANK
_SIZED_VALUE = 4
_BANKS = 16


@dataclass(frozen=True)
class ConstantBanks:
    """Where a kernel's parameters begin in bank 0, in bytes, and the contents of the other banks."""

    parameters: int = _HOPPER_PARAMETERS
    contents: Mapping[int, bytes] = field(default_factory=dict)

    def of_launch(self, geometry: Geometry, packed: bytes) -> dict[int, bytes]:
        """All banks, with the extents of a launch and its packed arguments in bank 0.

        Up to Hopper the extents stand at the bank's beginning, from Blackwell on right before the parameters.
        """
        first = bytearray(struct.pack("<6I", *geometry.block, *geometry.grid).ljust(self.parameters, b"\0"))
        struct.pack_into("<3I", first, self.parameters - 0x20, *geometry.block)
        struct.pack_into("<3I", first, self.parameters - 0x10, *geometry.grid)
        return {**self.contents, 0: bytes(first) + packed}


def constant_banks(cubin: bytes, function: str) -> ConstantBanks:
    """The banks of one function of a cubin; Hopper's layout where it doesn't say. Raises CubinError."""
    if not cubin:
        return ConstantBanks()
    with cubin_errors():
        return _constant_banks(cubin, function)


def _constant_banks(cubin: bytes, function: str) -> ConstantBanks:
    found = sections(cubin)
    contents = {
        bank: found[name].data
        for bank in range(1, _BANKS)
        for name in (f".nv.constant{bank}", f".nv.constant{bank}.{function}")
        if name in found
    }
    attributes = found.get(f".nv.info.{function}")
    return ConstantBanks(_parameters(attributes.data) if attributes else _HOPPER_PARAMETERS, contents)


def _parameters(data: bytes) -> int:
    """Where the attributes of a function say that its parameters begin."""
    at = 0
    while at + 4 <= len(data):
        layout, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if layout != _SIZED_VALUE:
            continue
        if kind == _PARAMETERS and size >= 8:
            _, place = struct.unpack_from("<II", data, at)
            return int(place & 0xFFFF)
        at += size
    return _HOPPER_PARAMETERS
