"""What the emulator doesn't know is refused by name, never skipped."""

import pytest

from mctskernel.profiling.emulator import (
    Execution,
    Geometry,
    GlobalMemory,
    UnsupportedPtxError,
    execute,
    parse_ptx,
)

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
GEOMETRY = Geometry((1, 1, 1), (32, 1, 1))


def refused(body: str) -> Execution:
    registers = ".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %q; .reg .pred %p; .reg .b16 %h;"
    module = parse_ptx(f"{HEAD}.visible .entry k()\n{{\n{registers}\n{body}\nret;\n}}")
    return execute(module, "k", GEOMETRY, [], GlobalMemory())


@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.fence.sync.aligned;",
        "tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%q];",
        "mbarrier.arrive_drop.shared.b64 %q, [%r0];",
        "cp.async.bulk.prefetch.L2.global [%q], 16;",
        "add.cc.u16 %h, %h, %h;",
        "cvt.rn.satfinite.e2m1x2.f32 %h, %f0, %f1;",
        "ld.shared::cluster.b32 %r0, [%r1];",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%q, %q}, {%q}, {%q}, {%q, %q};",
        "@%p bar.red.popc.u32 %r0, 0, %p;",
        "mov.u32 %r0, %nobody;",
    ],
)
def test_unknown_instruction_is_refused_by_name(instruction: str) -> None:
    done = refused(instruction)
    (finding,) = done.findings
    opcode = instruction.removeprefix("@%p ").partition(" ")[0].rstrip(";")
    assert finding.kind == "unsupported"
    assert opcode in finding.message or "%nobody" in finding.message


def test_unknown_directive_is_refused() -> None:
    with pytest.raises(UnsupportedPtxError, match="alias"):
        parse_ptx(f"{HEAD}.alias f, g;")


def test_clusters_are_refused() -> None:
    with pytest.raises(UnsupportedPtxError, match="reqnctapercluster"):
        parse_ptx(f"{HEAD}.visible .entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}")
