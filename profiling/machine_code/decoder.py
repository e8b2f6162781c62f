"""Machine code decoded word by word, into what NVIDIA's disassembler says of it.

It decodes what the tables explain to the last bit and nothing else, so that whoever asks can turn to nvdisasm. One
difference: where nvdisasm writes the label of a branch, this writes the address.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mctskernel.profiling.machine_code.cubin import INSTRUCTION_BYTES
from mctskernel.profiling.machine_code.encoding import Encodings, read_tables
from mctskernel.profiling.machine_code.encoding_tables import AMPERE, COMMON
from mctskernel.profiling.machine_code.instructions import Instruction
from mctskernel.profiling.machine_code.line_table import SOURCE_FILES, Row
from mctskernel.profiling.machine_code.operand_text import UnknownWordError

ARCHITECTURES = {80: AMPERE, 90: ""}
"""The compute capabilities, times ten, whose encodings the tables hold, with what is particular to each."""


@dataclass(frozen=True)
class UnknownWord:
    """A word that the tables don't explain."""

    address: int
    word: int

    def __str__(self) -> str:
        return f"the word {self.word:032x} at {self.address:#x} is in no encoding table"


def decode(
    code: bytes, architecture: int, source: Sequence[Row] = (), ptx: Sequence[Row] = ()
) -> tuple[Instruction, ...] | UnknownWord:
    """The instructions of one function, with their lines from its line tables; or the first unknown word."""
    known = encodings(architecture)
    found: list[Instruction] = []
    lines = zip(_lines_at(source, len(code), SOURCE_FILES), _lines_at(ptx, len(code), None), strict=True)
    for (low, high), (line, ptx_line) in zip(struct.iter_unpack("<QQ", code), lines, strict=True):
        address = INSTRUCTION_BYTES * len(found)
        try:
            found.append(_instruction(known, low | high << 64, address, (line, ptx_line)))
        except UnknownWordError:
            return UnknownWord(address, low | high << 64)
    return tuple(found)


@cache
def encodings(architecture: int) -> Encodings:
    """The encodings of an architecture, read once."""
    return read_tables(COMMON, ARCHITECTURES[architecture])


def _instruction(
    known: Encodings, word: int, address: int, lines: tuple[int | None, int | None]
) -> Instruction:
    for encoding in known.get(word & 0xFFF, ()):
        if word & encoding.mask == encoding.match:
            break
    else:
        raise UnknownWordError
    name = "".join([part if isinstance(part, str) else part(word, address) or "" for part in encoding.name])
    texts = [part if isinstance(part, str) else part(word, address) for part in encoding.operands]
    control = word >> 105
    waits = control >> 11 & 0x3F
    return Instruction(
        address,
        _guard(word >> 12 & 15, uniform=encoding.uniform_guard),
        name,
        ", ".join([text for text in texts if text is not None]).rstrip(),
        *lines,
        None if encoding.target is None else encoding.target(word, address),
        control & 0xF,
        control >> 5 & 7,
        control >> 8 & 7,
        tuple([barrier for barrier in range(6) if waits >> barrier & 1]) if waits else (),
    )


def _guard(found: int, *, uniform: bool) -> str:
    if found == 7:
        return ""
    number = "T" if found & 7 == 7 else str(found & 7)
    return f"{'!' if found >> 3 else ''}{'UP' if uniform else 'P'}{number}"


def _lines_at(rows: Sequence[Row], size: int, files: frozenset[str] | None) -> Iterator[int | None]:
    """The line of each instruction, None where its file is none of these."""
    line: int | None = None
    following = 0
    for address in range(0, size, INSTRUCTION_BYTES):
        while following < len(rows) and rows[following].address <= address:
            row = rows[following]
            line = row.line if files is None or row.file in files else None
            following += 1
        yield line
