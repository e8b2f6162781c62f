"""Disassembly of real machine code: what the compiler made of kernels whose shape is known."""

from functools import cache

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.machine_code import nvdisasm
from mctskernel.profiling.machine_code.functions import Function
from mctskernel.profiling.machine_code.instructions import Pipe
from mctskernel.profiling.machine_code.nvdisasm import DisassemblerError, Disassembly, disassemble

NESTED = """
extern "C" __global__ void k(const float* __restrict__ a, float* b, int n) {
    float sum = 0.0f;
    #pragma unroll 1
    for (int i = 0; i < n; i++) {
        #pragma unroll 1
        for (int j = 0; j < n; j++) {
            sum += a[i * n + j] * a[j];
        }
        b[i] = expf(sum);
    }
}
"""
STRAIGHT = """
extern "C" __global__ void k(const float* __restrict__ a, float* b) {
    __shared__ float s[256];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    b[threadIdx.x] = s[255 - threadIdx.x];
}
"""


@cache
def function(source: str, architecture: str = "sm_90") -> Function:
    result = build(Kernel(source), ("k",), architecture)
    assert isinstance(result, Build), result.message
    return disassemble(result.cubin).functions["k"]


def lines_of(found: Function, opcode: str) -> list[int | None]:
    return [i.line for i in found.instructions if i.opcode.startswith(opcode)]


def test_memory_instructions_carry_their_source_lines() -> None:
    found = function(STRAIGHT)
    assert lines_of(found, "LDG") == [4]
    assert lines_of(found, "BAR.SYNC") == [5]
    assert lines_of(found, "STG") == [6]


def test_every_instruction_names_the_ptx_line_that_it_came_from() -> None:
    result = build(Kernel(STRAIGHT), ("k",))
    assert isinstance(result, Build)
    ptx = result.ptx.split("\n")
    stores = [i for i in function(STRAIGHT).instructions if i.mnemonic in {"LDG", "STS", "LDS", "STG", "BAR"}]
    came_from = [ptx[(i.ptx_line or 0) - 1].split()[0] for i in stores]
    assert [text.split(".")[:2] for text in came_from] == [
        ["ld", "global"],
        ["st", "shared"],
        ["bar", "sync"],
        ["ld", "shared"],
        ["st", "global"],
    ]


def test_straight_code_has_no_loops_and_the_padding_is_not_reachable() -> None:
    found = function(STRAIGHT)
    assert found.loops == ()
    reachable = [i.mnemonic for block in found.successors for i in found.code(block)]
    assert reachable.count("EXIT") == 1
    assert "NOP" not in reachable


def test_nested_loops_are_found_with_their_nesting() -> None:
    found = function(NESTED)
    parents = {loop.parent for loop in found.loops}
    assert len(found.loops) == 2
    assert parents == {None, 0}
    inner, outer = found.loops[1].blocks, found.loops[0].blocks
    assert inner < outer
    loads = [b for b in found.successors if any(i.mnemonic == "LDG" for i in found.code(b))]
    assert all(found.innermost[block] == 1 for block in loads)


def test_an_unrolled_loop_holds_its_copies_in_one_block() -> None:
    unrolled = NESTED.replace("#pragma unroll 1\n        for (int j", "#pragma unroll 8\n        for (int j")
    found = function(unrolled)
    most = max(sum(i.mnemonic == "LDG" for i in found.code(block)) for block in found.successors)
    assert most >= 16


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_mix_tells_pipes_apart(architecture: str) -> None:
    mix = function(NESTED, architecture).mix()
    assert mix[Pipe.SPECIAL] >= 1
    assert mix[Pipe.LSU] >= 3
    assert mix[Pipe.FMA] >= 2
    assert mix[Pipe.TENSOR] == 0


def test_loads_release_a_scoreboard_that_their_use_waits_for() -> None:
    found = function(STRAIGHT)
    load = next(i for i in found.instructions if i.mnemonic == "LDG")
    store = next(i for i in found.instructions if i.mnemonic == "STS")
    assert load.sets_on_write < 6
    assert load.sets_on_write in store.waits
    assert all(1 <= i.stall <= 15 for i in found.instructions if i.mnemonic in {"IMAD", "LEA", "MOV"})


def test_a_file_that_is_no_cubin_is_reported() -> None:
    with pytest.raises(DisassemblerError, match="nvdisasm failed"):
        disassemble(b"\x7fELF not really")


def test_a_disassembly_that_nobody_waits_for_is_ended() -> None:
    result = build(Kernel(STRAIGHT), ("k",))
    assert isinstance(result, Build)
    with nvdisasm.start_disassembly(result.cubin) as pending:
        process = pending._process
    assert process.returncode is not None


def test_a_missing_disassembler_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvdisasm.find_nvdisasm.cache_clear()
    monkeypatch.setattr(nvdisasm, "find_nvidia_binary_utility", lambda _: None)
    with pytest.raises(DisassemblerError, match="pip install nvidia-cuda-nvdisasm"):
        nvdisasm.start_disassembly(b"")


def test_several_kernels_are_told_apart() -> None:
    source = STRAIGHT + NESTED.replace("void k(", "void other(")
    result = build(Kernel(source), ("k",))
    assert isinstance(result, Build)
    found: Disassembly = disassemble(result.cubin)
    assert set(found.functions) == {"k", "other"}
    assert (len(found.functions["k"].loops), len(found.functions["other"].loops)) == (0, 2)
