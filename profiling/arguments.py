"""A launch's arguments as the bytes that its parameters take, whose types the compiler wrote into PTX."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,]*?[\w$]+(\[\d+\])?\s*$")

_INTEGER_BITS = {"8": 8, "16": 16, "32": 32, "64": 64}


def parameter_types(ptx: str, entry: str) -> tuple[str, ...]:
    """The PTX types of an entry's parameters, such as `u64` or `f32`; `struct` for one passed by value."""
    for match in _ENTRY.finditer(ptx):
        if match[1] == entry:
            return tuple(_type(text) for text in match[2].split(",") if text.strip())
    raise KeyError(entry)


def bind(launch: ResolvedLaunch, types: tuple[str, ...], addresses: Mapping[str, int]) -> tuple[bytes, ...]:
    """The bytes of each argument: an address for a buffer, else a number in its parameter's type.

    Raises LaunchPlanError for a launch that C++ would refuse or silently bend.
    """
    what = f"The launch of '{launch.kernel}'"
    if len(types) != len(launch.arguments):
        raise LaunchPlanError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(types)} parameters."
        )
    return tuple(
        _address(addresses[argument], type_, f"{what}: argument {number} ('{argument}')")
        if isinstance(argument, str)
        else _number(argument, type_, f"{what}: argument {number}")
        for number, (argument, type_) in enumerate(zip(launch.arguments, types, strict=True), 1)
    )


def _type(text: str) -> str:
    match = _PARAMETER.search(text.strip())
    if match is None or match[2]:
        return "struct"
    return match[1]


def _address(address: int, type_: str, what: str) -> bytes:
    if type_ not in ("u64", "b64", "s64"):
        raise LaunchPlanError(
            f"{what} is a buffer, but the parameter is no pointer (its PTX type is .{type_})."
        )
    return address.to_bytes(8, "little")


def _number(value: Number, type_: str, what: str) -> bytes:
    if type_ == "f32":
        return struct.pack("<f", value)
    if type_ == "f64":
        return struct.pack("<d", value)
    kind, bits = type_[:1], _INTEGER_BITS.get(type_[1:])
    if kind not in "usb" or bits is None:
        raise LaunchPlanError(f"{what} is a number, which a parameter of the PTX type .{type_} can't take.")
    if not float(value).is_integer():
        raise LaunchPlanError(f"{what} is {value}, but the parameter is a whole number.")
    whole = int(value)
    if not -(1 << (bits - 1)) <= whole < 1 << bits:
        raise LaunchPlanError(f"{what} is {whole}, which doesn't fit in {bits} bits.")
    return (whole & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
