"""The lines of instructions against nvdisasm's, and against line programs written here."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.disassembly import decoded
from mctskernel.profiling.machine_code.line_table import PTX_LINES, SOURCE_LINES, Row, line_rows

INLINED = """
#line 1 "/include/other.h"
__device__ __forceinline__ float scaled(float x) {
    return 3.0f * x;
}
#line 1 "kernel.cu"
#include <cuda_fp16.h>
__device__ __forceinline__ float twice(float x) {
    return x + x;
}
extern "C" __global__ void first(const half* a, float* b) {
    int i = threadIdx.x;
    float x = __half2float(__hadd(a[i], a[i + 1]));
    b[i] = twice(x) / scaled(b[i + 3]);
}
extern "C" __global__ void second(float* b) {
    b[threadIdx.x] = twice(b[threadIdx.x + 1]);
}
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_lines_of_source_and_ptx_are_those_of_nvdisasm(architecture: str) -> None:
    made = build(Kernel(INLINED), ("first", "second"), architecture)
    assert isinstance(made, Build), made.message
    mine, theirs = decoded(made.cubin), nvdisasm.disassemble(made.cubin)
    assert mine is not None
    for name, function in theirs.functions.items():
        lines = [(each.line, each.ptx_line) for each in mine.functions[name].instructions]
        assert lines == [(each.line, each.ptx_line) for each in function.instructions]
    assert {each.line for each in mine.functions["first"].instructions} >= {None, 3, 8}


def test_rows_name_the_file_and_the_function() -> None:
    made = build(Kernel(INLINED), ("first", "second"))
    assert isinstance(made, Build)
    source, ptx = line_rows(made.cubin, SOURCE_LINES), line_rows(made.cubin, PTX_LINES)
    assert source.keys() == ptx.keys() == {"first", "second"}
    assert {row.file for row in source["first"]} == {"kernel.cu", "other.h"}
    assert {row.file for row in source["second"]} == {"kernel.cu"}


STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(-50, 300), st.integers(0, 2)), min_size=1, max_size=20
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_line_program_says_what_it_was_written_to_say(steps: list[tuple[int, int, int]]) -> None:
    address, line = 0, 1000
    expected, program = [], bytes([0, 9, 2, *bytes(8), 3, *_signed(999)])
    for instructions, lines, how in steps:
        address += 16 * instructions
        line += lines
        expected.append(Row(address, "kernel.cu", line))
        program += _step(16 * instructions, lines, how)
    image = _object_file(program + bytes([0, 1, 1]))
    assert line_rows(image, SOURCE_LINES) == {"k": expected}


def test_a_file_without_line_tables_has_no_rows() -> None:
    assert line_rows(_object_file(b""), PTX_LINES) == {}


BASE, RANGE, FIRST_SPECIAL = -5, 14, 10


def _step(advance: int, lines: int, how: int) -> bytes:
    """One row further, in one of the ways that there are of saying so."""
    special = lines - BASE + RANGE * advance + FIRST_SPECIAL
    if how == 0 and 0 <= lines - BASE < RANGE and special < 256:
        return bytes([special])
    constant = (255 - FIRST_SPECIAL) // RANGE
    if how == 1:
        moved = bytes([9, *struct.pack("<H", advance)])
    elif how == 2 and advance >= constant:
        moved = bytes([8, 2, *_unsigned(advance - constant)])
    else:
        moved = bytes([2, *_unsigned(advance)])
    return moved + bytes([3, *_signed(lines), 6, 1])  # 6 negates a flag that nobody asks for; 1 makes the row


def _unsigned(number: int) -> bytes:
    found = []
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _signed(number: int) -> bytes:
    found = []
    while not -64 <= number < 64:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number & 0x7F])


def _object_file(program: bytes) -> bytes:
    """An ELF file with one function `k` and its line program."""
    arguments = bytes([0, 1, 1, 1, 1, 0, 0, 0, 1])
    files = b"/candidate\0\0kernel.cu\0" + bytes([1, 0, 0, 0])
    after = bytes([1, 1, BASE & 0xFF, RANGE, FIRST_SPECIAL]) + arguments + files
    unit = struct.pack("<HI", 3, len(after)) + after + program
    lines = struct.pack("<I", len(unit)) + unit
    start = len(lines) - len(program) + 3
    symbols = bytes(24) + struct.pack("<IBBHQQ", 0, 2, 0, 1, 0, 16)
    relocations = struct.pack("<QIIq", start, 2, 1, 0) if program else b""
    contents = {
        "": b"",
        ".text.k": bytes(16),
        ".symtab": symbols,
        ".debug_line": lines if program else b"",
        ".rela.debug_line": relocations,
    }
    names = b"".join(name.encode() + b"\0" for name in [*contents, ".shstrtab"])
    contents[".shstrtab"] = names
    headers, body, at_name = b"", b"", 0
    for name, data in contents.items():
        headers += struct.pack("<IIQQQQ", at_name, 1, 0, 0, 64 + len(body), len(data)) + bytes(24)
        body += data
        at_name += len(name) + 1
    header = bytes(40) + struct.pack("<Q", 64 + len(body)) + bytes(10) + struct.pack("<HHH", 64, 6, 5)
    return header + body + headers
