"""One instruction of machine code, and the execution unit that it occupies."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

NO_BARRIER = 7


class Pipe(enum.StrEnum):
    """The execution unit that an instruction is issued to."""

    FMA = "fma"
    ALU = "alu"
    SPECIAL = "special functions"
    FP64 = "fp64"
    TENSOR = "tensor"
    LSU = "lsu"
    UNIFORM = "uniform"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `line` is the kernel's source line, None for code that comes from a header; `ptx_line`
    is the line of the PTX that it was made from; `target` is the address that its label stands for.

    `stall` is the cycles until the warp's next issue that the compiler asks for; `sets` are the scoreboards
    that it releases when its result is written or its operands are read, `waits` those it waits for.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    line: int | None
    ptx_line: int | None
    target: int | None
    stall: int
    sets_on_write: int
    sets_on_read: int
    waits: tuple[int, ...]

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def pipe(self) -> Pipe:
        """The execution unit."""
        return _pipe(self.mnemonic)


_MNEMONICS: Mapping[Pipe, str] = {
    Pipe.FMA: "FFMA FADD FMUL FFMA32I FADD32I FMUL32I IMAD IMUL HFMA2 HADD2 HMUL2 IDP FSWZADD",
    Pipe.SPECIAL: "MUFU I2F F2I F2F FRND POPC FLO BREV I2I",
    Pipe.FP64: "DFMA DADD DMUL DSETP DMNMX",
    Pipe.TENSOR: "HMMA IMMA DMMA BMMA QMMA HGMMA IGMMA QGMMA BGMMA",
    Pipe.LSU: "LDG STG LDS STS LDL STL LD ST LDSM STSM ATOM ATOMG ATOMS RED REDG LDGSTS SHFL MATCH CCTL "
    "UBLKCP UTMALDG UTMASTG LDC",
    Pipe.CONTROL: "BRA BRX JMP JMX EXIT RET CALL BSSY BSYNC BREAK WARPSYNC BAR BMOV YIELD NOP DEPBAR "
    "LDGDEPBAR MEMBAR ERRBAR NANOSLEEP KILL BPT WARPGROUP ARRIVES SYNCS PREEXIT ACQBULK VOTE "
    "CS2R S2R",
    Pipe.UNIFORM: "R2UR S2UR",
}
_PIPE_OF = {mnemonic: pipe for pipe, mnemonics in _MNEMONICS.items() for mnemonic in mnemonics.split()}


def _pipe(mnemonic: str) -> Pipe:
    """What is in no list is uniform when it begins with U, and integer or logic otherwise."""
    return _PIPE_OF.get(mnemonic, Pipe.UNIFORM if mnemonic.startswith("U") else Pipe.ALU)
