"""Machine code decoded here against nvdisasm: single words with random fields, garbage, and whole kernels."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.cubin import sections
from mctskernel.profiling.machine_code.decoder import UnknownWord, decode, encodings
from mctskernel.profiling.machine_code.disassembly import decoded, disassemble, start_disassembly
from mctskernel.profiling.machine_code.encoding import TableError, read_tables
from mctskernel.profiling.machine_code.instructions import Instruction
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError, find_nvdisasm
from tests.profiling.machine_code.against_nvdisasm import check_against_nvdisasm

CONTROL = 0x000FEA << 104
"""A stall, and no scoreboard: what every instruction may have."""
NO_OPERATION = 0x7918 | CONTROL
ARCHITECTURES = (80, 90)


def texts(words: Sequence[int], architecture: int) -> list[str | None]:
    """What nvdisasm makes of each word, None of those that it refuses. Word n is at address 16 n."""
    refused: set[int] = set()
    while True:
        asked = [NO_OPERATION if at in refused else word for at, word in enumerate(words)]
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(b"".join(word.to_bytes(16, "little") for word in asked))
            file.flush()
            command = [find_nvdisasm(), "-b", f"SM{architecture}", "-ndf", file.name]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        found = {int(address, 16) // 16 for address in re.findall(r"at address (0x[0-9a-f]+)", answer.stderr)}
        if not found:
            assert not answer.returncode, answer.stderr[:500]
            break
        assert not found <= refused
        refused |= found
    listing = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", answer.stdout, re.M)
    written = {int(address, 16) // 16: text for address, text in listing}
    return [None if at in refused else written.get(at) for at in range(len(words))]


def text(instruction: Instruction) -> str:
    guard = f"@{instruction.predicate} " if instruction.predicate else ""
    return f"{guard}{instruction.opcode} {instruction.operands}".strip()


def known_of(words: Sequence[int], architecture: int) -> list[str | None]:
    """The text of each of many words, None of those that are unknown."""
    code = [word.to_bytes(16, "little") for word in words]
    known = [not isinstance(decode(each, architecture), UnknownWord) for each in code]
    blank = NO_OPERATION.to_bytes(16, "little")
    whole = b"".join(each if fine else blank for each, fine in zip(code, known, strict=True))
    found = decode(whole, architecture)
    assert not isinstance(found, UnknownWord)
    return [text(instruction) if fine else None for instruction, fine in zip(found, known, strict=True)]


def differences(words: Sequence[int], architecture: int) -> tuple[list[str], int]:
    """Where both say something and not the same, and how often both say the same."""
    mine, theirs = known_of(words, architecture), texts(words, architecture)
    both = [(a, b, w) for a, b, w in zip(mine, theirs, words, strict=True) if a is not None and b is not None]
    wrong = [f"{w:032x}: {a!r}, nvdisasm: {b!r}" for a, b, w in both if a.split() != b.split()]
    return wrong, len(both) - len(wrong)


def a_word(generator: random.Random) -> int:
    """Random operand bits, some bytes of them all ones or all zeros: RZ, PT, no modifier."""
    word = generator.getrandbits(105)
    if generator.random() < 0.4:
        for low in range(16, 105, 8):
            chosen = generator.random()
            if chosen < 0.5:
                word |= 0xFF << low
            if chosen < 0.25:
                word &= ~(0xFF << low)
    return word


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(2))
def test_every_row_writes_random_operands_as_nvdisasm_does(architecture: int, seed: int) -> None:
    generator = random.Random(seed)  # noqa: S311 - the same words every time
    rows = [encoding for found in encodings(architecture).values() for encoding in found]
    words = [
        (a_word(generator) & ~row.mask | row.match) & ((1 << 105) - 1) | CONTROL
        for row in rows
        for _ in range(8)
    ]
    wrong, same = differences(words, architecture)
    assert not wrong, "\n".join(wrong[:10])
    assert same > len(words) / 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_words_with_bits_turned_are_unknown_or_as_nvdisasm_writes_them(architecture: int) -> None:
    generator = random.Random(7)  # noqa: S311 - the same words every time
    compiled = [
        int.from_bytes(code[at : at + 16], "little")
        for code in (code_of(source, architecture) for source in SOURCES)
        for at in range(0, len(code), 16)
    ]
    words = [word ^ 1 << generator.randrange(105) for word in set(compiled) for _ in range(6)]
    wrong, same = differences(words, architecture)
    assert not wrong, "\n".join(wrong[:10])
    assert same > len(words) / 3


def test_garbage_is_unknown_or_as_nvdisasm_writes_it() -> None:
    generator = random.Random(3)  # noqa: S311 - the same words every time
    words = [generator.getrandbits(105) | CONTROL for _ in range(4000)]
    wrong, _ = differences(words, 90)
    assert not wrong, "\n".join(wrong[:10])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoder(code: bytes) -> None:
    whole = code[: len(code) // 16 * 16]
    found = decode(whole, 90)
    assert isinstance(found, UnknownWord) or len(found) == len(whole) // 16


def test_a_row_with_a_field_in_the_wrong_place_is_caught() -> None:
    word = 0x10 << 64 | 3 << 72 | 0x0C08107223
    right = read_tables(["023/1  FFMA{.FTZ@80}{,.RM,.RP,.RZ@78}  Rd, -|Ra|, -|Rb|, -|Rc|"])
    wrong = read_tables(["023/1  FFMA{.FTZ@80}{,.RM,.RP,.RZ@78}  Rd, |Ra|, -|Rb|, -|Rc|"])
    (asked,) = texts([word | CONTROL], 90)
    (encoding,) = right[0x223]
    written = [part if isinstance(part, str) else part(word, 0) for part in encoding.operands]
    assert asked == f"FFMA {', '.join(filter(None, written))}"
    (encoding,) = wrong[0x223]
    assert word & encoding.mask != encoding.match, "a bit that no column explains makes a word unknown"


@pytest.mark.parametrize(
    "row", ["FFMA  Rd", "023/9  FFMA  Rd", "023/1  FFMA  Rd, <nothing>", "023/1  FFMA{*nothing@80}  Rd"]
)
def test_a_row_that_cannot_be_read_is_named(row: str) -> None:
    with pytest.raises(TableError, match=re.escape(row)):
        read_tables([row])


# Whole kernels.

REDUCTION = """
extern "C" __global__ void k(const float* __restrict__ a, float* b, int n) {
    __shared__ float s[256];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += expf(a[i]);
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 16; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        sum = s[threadIdx.x];
        for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
        if (threadIdx.x == 0) atomicAdd(b, sum / n);
    }
}
"""
INTEGERS = """
extern "C" __global__ void k(const int4* a, int* b, long long* c, int n) {
    int4 v = a[threadIdx.x];
    unsigned x = v.x, y = v.y;
    b[0] = v.x * v.y + v.z; b[1] = __mulhi(v.x, v.w); b[2] = x / 7 + y % n; b[3] = __dp4a(v.x, v.y, v.z);
    b[4] = min(v.x, v.y) + max(x, y); b[5] = abs(v.x); b[6] = __byte_perm(x, y, 0x5140); b[7] = __popc(x) + __clz(y);
    b[8] = __funnelshift_l(x, y, v.z); b[9] = v.x > v.y ? v.z : v.w; b[10] = __ballot_sync(~0u, v.x > 3);
    c[0] = (long long)v.x * v.y + n; c[1] = c[2] / (v.x | 1); c[3] = c[4] >> v.z;
    if (v.x == 99) __trap();
    atomicMax(b + 12, v.x); b[13] = atomicCAS(b + 14, v.y, v.z);
}
"""
HALVES = """
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half2* h, float* b, double* d, half2* out) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
    wmma::fill_fragment(z, 0.0f);
    wmma::load_matrix_sync(x, a, 16);
    wmma::load_matrix_sync(y, a, 16);
    wmma::mma_sync(z, x, y, z);
    wmma::store_matrix_sync(b, z, 16, wmma::mem_row_major);
    int i = threadIdx.x;
    out[i] = __hfma2(h[i], h[i + 1], __hmax2(h[i + 2], __hneg2(h[i + 3])));
    d[i] = fma(d[i + 1], d[i + 2], 0.5) + (double)b[i] + sqrt(d[i + 3]);
    b[i] = (float)d[i + 4] + (float)(int)b[i + 5] + rintf(b[i + 6]) + sinf(b[i + 7]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(16 * i), "l"(a));
    asm volatile("cp.async.wait_all;");
}
"""
SOURCES = (REDUCTION, INTEGERS, HALVES)
PRINTING = """
extern "C" __global__ void k(int* out) { printf("%d", out[0]); }
"""


@cache
def cubin(source: str, architecture: int) -> bytes:
    made = build(Kernel(source), ("k",), f"sm_{architecture}")
    assert isinstance(made, Build), made.message
    return made.cubin


def code_of(source: str, architecture: int) -> bytes:
    return sections(cubin(source, architecture))[".text.k"].data


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_kernel_is_decoded_as_nvdisasm_has_it(source: str, architecture: int) -> None:
    check_against_nvdisasm(cubin(source, architecture))


def test_a_decoded_kernel_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    image = cubin(REDUCTION, 90)
    monkeypatch.setattr(nvdisasm, "start_disassembly", lambda _: pytest.fail("nvdisasm was started"))
    with start_disassembly(image) as pending:
        assert set(pending.result().functions) == {"k"}


@pytest.mark.parametrize(
    ("source", "architecture"),
    [(PRINTING, 90), (REDUCTION, 120)],
    ids=["unknown opcode", "sm_120"],
)
def test_what_is_not_known_goes_to_nvdisasm(source: str, architecture: int) -> None:
    image = cubin(source, architecture)
    assert decoded(image) is None
    assert disassemble(image) == nvdisasm.disassemble(image)


def test_code_that_the_linker_has_yet_to_change_is_left_to_nvdisasm() -> None:
    image = bytearray(cubin(HALVES, 90))
    assert decoded(bytes(image)) is not None
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, _ = struct.unpack_from("<HHH", image, 58)
    at = list(sections(bytes(image))).index(".rela.text.k")
    assert at < count
    struct.pack_into("<Q", image, table + size * at + 32, 24)
    assert decoded(bytes(image)) is None


def test_a_missing_nvdisasm_matters_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdisasm, "find_nvidia_binary_utility", lambda _: None)
    find_nvdisasm.cache_clear()
    assert disassemble(cubin(REDUCTION, 90)).functions
    with pytest.raises(DisassemblerError, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(cubin(PRINTING, 90))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 4096),
)
def test_a_damaged_cubin_is_left_to_nvdisasm_or_decoded(changes: list[tuple[int, int]], kept: int) -> None:
    image = bytearray(cubin(REDUCTION, 90))
    for at, byte in changes:
        image[at % len(image)] = byte
    decoded(bytes(image))
    decoded(bytes(image[:kept]))
