"""Which source line each instruction of a cubin comes from: the DWARF line programs that the compilers write.

A cubin has two: `.debug_line` for the source, and `.nv_debug_line_sass`, in the same format, for the PTX. Where a
sequence of instructions begins is left to a relocation. The format is in the DWARF 3 standard, section 6.2; no
library is used because those at hand neither relocate for EM_CUDA nor look beyond `.debug_line`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mctskernel.profiling.machine_code.cubin import sections

SOURCE_LINES = ".debug_line"
PTX_LINES = ".nv_debug_line_sass"

SOURCE_FILES = frozenset({"kernel.cu", "kernel.py"})
"""What the compilers are told that a kernel's file is called."""


class Row(NamedTuple):
    """From this address on, code comes from this line of this file; its name is without folders."""

    address: int
    file: str
    line: int


def line_rows(image: bytes, section: str) -> Mapping[str, list[Row]]:
    """The rows of one line program by the name of the function, in the order of their addresses."""
    found = sections(image)
    rows: dict[str, list[Row]] = {}
    if section not in found:
        return rows
    starts = _starts(image, section)
    data, at = found[section].data, 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        for start, row in _Program(data, at, at + 4 + length).rows():
            code, offset = starts.get(start, ("", 0))
            if code.startswith(".text."):
                rows.setdefault(code.removeprefix(".text."), []).append(
                    row._replace(address=row.address + offset)
                )
        at += 4 + length
    for each in rows.values():
        each.sort(key=lambda row: row.address)
    return rows


_SYMBOL_BYTES = 24


def _starts(image: bytes, section: str) -> Mapping[int, tuple[str, int]]:
    """For each address that a relocation fills in: the section it is in, and where in it."""
    found = sections(image)
    names = list(found)
    symbols = found[".symtab"].data
    starts = {}
    for kind, layout in ((".rela", "<QIIq"), (".rel", "<QII")):
        relocations = found[kind + section].data if kind + section in found else b""
        for place, _, symbol, *addend in struct.iter_unpack(layout, relocations):
            _, _, _, index, value, _ = struct.unpack_from("<IBBHQQ", symbols, symbol * _SYMBOL_BYTES)
            starts[place] = (names[index] if index < len(names) else "", value + sum(addend))
    return starts


# Standard opcodes, and those of the extended ones that matter here.
_EXTENDED, _COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE = 0, 1, 2, 3, 4
_CONSTANT_ADD_PC, _FIXED_ADVANCE_PC = 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2


@dataclass
class _State:
    """The registers of the line machine; `start` is where the address of the sequence is to be filled in."""

    start: int = -1
    address: int = 0
    file: int = 1
    line: int = 1


class _Program:
    """One unit's line program."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._end = end
        _, header_length, self._unit = struct.unpack_from("<HIB", data, at + 4)
        self._at = at + 15
        self._base, self._range, opcodes = struct.unpack_from("<bBB", data, at + 12)
        self._arguments = (0, *data[self._at : self._at + opcodes - 1])
        self._at += opcodes - 1
        self._files = self._file_names()
        self._at = at + 10 + header_length

    def _file_names(self) -> list[str]:
        while self._text():  # the folders
            pass
        names = [""]
        while name := self._text():
            names.append(name)
            for _ in range(3):
                self._number()
        return names

    def _text(self) -> str:
        end = self._data.index(b"\0", self._at)
        text = self._data[self._at : end].decode(errors="replace")
        self._at = end + 1
        return text.rpartition("/")[2]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self, *, signed: bool = False) -> int:
        """A LEB128 number."""
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found - (1 << shift) if signed and byte & 0x40 else found

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Each row, with where the address of its sequence is to be filled in."""
        state = _State()
        while self._at < self._end:
            opcode = self._byte()
            if opcode >= len(self._arguments):
                advance, line = divmod(opcode - len(self._arguments), self._range)
                state.address += advance * self._unit
                state.line += self._base + line
                yield self._row(state)
            elif opcode == _EXTENDED:
                state = self._extended(state)
            elif opcode == _COPY:
                yield self._row(state)
            else:
                self._standard(opcode, state)

    def _standard(self, opcode: int, state: _State) -> None:
        """An opcode that makes no row."""
        if opcode == _ADVANCE_PC:
            state.address += self._number() * self._unit
        elif opcode == _ADVANCE_LINE:
            state.line += self._number(signed=True)
        elif opcode == _SET_FILE:
            state.file = self._number()
        elif opcode == _CONSTANT_ADD_PC:
            state.address += (255 - len(self._arguments)) // self._range * self._unit
        elif opcode == _FIXED_ADVANCE_PC:
            (advance,) = struct.unpack_from("<H", self._data, self._at)
            state.address += advance
            self._at += 2
        else:
            for _ in range(self._arguments[opcode]):
                self._number()

    def _extended(self, state: _State) -> _State:
        length = self._number()
        following = self._at + length
        opcode = self._byte()
        if opcode == _END_SEQUENCE:
            state = _State()
        elif opcode == _SET_ADDRESS:
            state = replace(state, start=self._at, address=0)
        self._at = following
        return state

    def _row(self, state: _State) -> tuple[int, Row]:
        name = self._files[state.file] if state.file < len(self._files) else ""
        return state.start, Row(state.address, name, state.line)
