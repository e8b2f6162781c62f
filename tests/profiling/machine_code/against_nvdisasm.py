"""Whole cubins decoded here against nvdisasm."""

from __future__ import annotations

import re
from dataclasses import replace

from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.disassembly import decoded
from mctskernel.profiling.machine_code.instructions import Instruction


def check_against_nvdisasm(image: bytes) -> None:
    """Every instruction, its text and its lines. In place of a label stands the address that `target` has, too."""
    mine, theirs = decoded(image), nvdisasm.disassemble(image)
    assert mine is not None
    assert mine.functions.keys() == theirs.functions.keys()
    for name, function in theirs.functions.items():
        for found, wanted in zip(mine.functions[name].instructions, function.instructions, strict=True):
            if "`(" in wanted.operands:
                _check_label(found, wanted)
                assert replace(found, operands="") == replace(wanted, operands="")
            else:
                assert found == wanted


def _check_label(found: Instruction, wanted: Instruction) -> None:
    before = re.sub(r"-?0x[0-9a-f]+$", "", found.operands)
    assert before.split() == re.sub(r"`\(.*\)", "", wanted.operands).split()
    if wanted.target is not None:
        assert found.operands == f"{before}{wanted.target:#x}"
