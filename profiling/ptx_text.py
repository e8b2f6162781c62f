"""What a PTX module declares, read off its text."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping

from mctskernel.core.expression import Number
from mctskernel.core.launch_plan import LaunchPlanError, ResolvedLaunch

_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|common)[ \t]+)?\.(?:global|const)\b[^;={]*?([A-Za-z_$][\w$]*)(?:\[\d*\])*[ \t]*[;=]",
    re.M,
)


def variables(ptx: str) -> tuple[str, ...]:
    """The names of the variables that a module defines: `__device__` and `__constant__` ones keep their values."""
    return tuple(dict.fromkeys(_VARIABLE.findall(ptx)))


def used_variables(ptx: str) -> tuple[str, ...]:
    """Those that anything refers to: of the constants of a header most are defined alone."""
    return tuple(name for name in variables(ptx) if ptx.count(name) > 1)


def variable_bytes(ptx: str) -> float:
    """The least bytes of a module's variables, those in functions included; infinite where a size can't be read."""
    return math.fsum(map(_declared_bytes, _DECLARATION.findall(without_comments(ptx))))


# A parameter that points to global memory (`.ptr .global`) declares nothing there.
_DECLARATION = re.compile(r"\.ptr\s+\.\w+|(?<![\w$.%])\.(?:global|const)\b([^;]*)")
_ELEMENT_BITS = re.compile(r"\.[bsuf](8|16|32|64|128)\b")
_VECTOR = re.compile(r"\.v([248])\b")
_COUNT = re.compile(r"\[([^\]]*)\]|<([^>]*)>")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?")


def _declared_bytes(declaration: str) -> float:
    """The bytes of what one declaration declares: `.align 4 .v2 .f32 a[16], b<8>`."""
    bits, lanes = _ELEMENT_BITS.search(declaration), _VECTOR.search(declaration)
    size = (int(bits[1]) // 8 if bits else 1) * (int(lanes[1]) if lanes else 1)
    names = re.sub(r"=\s*(\{[^{}]*(\{[^{}]*\}[^{}]*)*\}|[^,]*)", "", declaration).split(",")
    return math.fsum(size * math.prod(_count(*found) for found in _COUNT.findall(name)) for name in names)


def _count(*texts: str) -> float:
    """The number between brackets; 1 for none, whose initialiser gives it."""
    text = "".join(texts).strip()
    found = _INTEGER.fullmatch(text)
    if found is None:
        return math.inf if text else 1.0
    # A number of PTX that begins with 0 is octal, as in C; read as decimal it is larger.
    return float(int(found[1], 0)) if found[1][:2].lower() in ("0x", "0b") else float(found[1])


def without_comments(ptx: str) -> str:
    """The text with a space for each comment, in a time that grows as its length does."""
    # Behind the last end of a comment each beginning of one would be followed to the end of the text.
    end = ptx.rfind("*/") + 2 if "*/" in ptx else 0
    return _COMMENT.sub(" ", ptx[:end]) + _LINE_COMMENT.sub(" ", ptx[end:])


_LINE_COMMENT = re.compile(r"//[^\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,]*?[\w$]+(\[\d+\])?\s*$")

_INTEGER_BITS = {"8": 8, "16": 16, "32": 32, "64": 64}


def parameter_types(ptx: str, entry: str) -> tuple[str, ...]:
    """PTX types of an entry's parameters: `u64`, `struct` by value, or `TENSOR_MAP` by its size."""
    for match in _ENTRY.finditer(ptx):
        if match[1] == entry:
            return tuple(_type(text) for text in match[2].split(",") if text.strip())
    raise KeyError(entry)


TENSOR_MAP = "tensor map"
TENSOR_MAP_BYTES = 128  # the size of a CUtensorMap, and what its PTX type is called here


def waits_for_grids(ptx: str, entry: str) -> bool:
    """Whether an entry's own text, or a function's, waits for the launches before it (`griddepcontrol.wait`)."""
    parts = re.split(r"^(?=[^\n]*\.entry\b)", ptx, flags=re.MULTILINE)
    reached = re.compile(rf"\.func\b|\.entry\s+{re.escape(entry)}\b")
    return any("griddepcontrol.wait" in part and reached.search(part) for part in parts)


def bind(
    launch: ResolvedLaunch, types: tuple[str, ...], addresses: Mapping[str, int | bytes]
) -> tuple[bytes, ...]:
    """The bytes of each argument. Raises LaunchPlanError for a launch that C++ would refuse or silently bend."""
    what = f"The launch of '{launch.kernel}'"
    if len(types) != len(launch.arguments):
        raise LaunchPlanError(
            f"{what} has {len(launch.arguments)} arguments; the kernel has {len(types)} parameters."
        )
    return tuple(
        _named(addresses[argument], type_, f"{what}: argument {number} ('{argument}')")
        if isinstance(argument, str)
        else _number(argument, type_, f"{what}: argument {number}")
        for number, (argument, type_) in enumerate(zip(launch.arguments, types, strict=True), 1)
    )


def _type(text: str) -> str:
    match = _PARAMETER.search(text.strip())
    if match is not None and match[1] == "b8" and match[2] == f"[{TENSOR_MAP_BYTES}]":
        return TENSOR_MAP
    if match is None or match[2]:
        return "struct"
    return match[1]


def _named(value: int | bytes, type_: str, what: str) -> bytes:
    if isinstance(value, int):
        return _address(value, type_, what)
    # The driver reads as many bytes as the parameter has.
    if type_ != TENSOR_MAP:
        raise LaunchPlanError(
            f"{what} is a tensor map: the parameter must be 'const __grid_constant__ CUtensorMap'."
        )
    return value


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
