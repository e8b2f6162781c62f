"""What the compiler's two products and its report look like from outside."""

from pathlib import Path

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, BuildFailure, build

STORE = "__global__ void store(float* x) { x[threadIdx.x] = 1.0f; }"

WGMMA = """extern "C" __global__ void probe() { asm volatile("wgmma.fence.sync.aligned;"); }"""


def built(source: str, *names: str) -> Build:
    result = build(Kernel(source), names)
    assert isinstance(result, Build), result.message
    return result


def failed(source: str, *names: str) -> BuildFailure:
    result = build(Kernel(source), names)
    assert isinstance(result, BuildFailure)
    return result


def test_one_compilation_gives_ptx_and_machine_code_with_source_lines() -> None:
    result = built("\n\n" + STORE, "store")
    assert ".target sm_90" in result.ptx
    assert result.cubin.startswith(b"\x7fELF")
    assert '.file\t1 "kernel.cu"' in result.ptx
    assert ".loc\t1 3 " in result.ptx


@pytest.mark.parametrize("linkage", ["", 'extern "C" '])
def test_plan_names_reach_mangled_and_plain_entries(linkage: str) -> None:
    result = built(linkage + STORE, "store")
    assert f".entry {result.entries['store']}(" in result.ptx


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__global__ void store(float* x) {\n  *x = y;\n}", 'Line 2: identifier "y" is undefined.'),
        ("__device__ int ok;\nbad", "Line 2: this declaration has no storage class or type specifier."),
        (
            "__global__ void store(int* x) { __shared__ int s[99999]; s[*x] = 1; __syncthreads(); *x = s[7]; }",
            "ptxas: Entry function 'store' uses too much shared data (0x61a7c bytes, 0x38c00 max).",
        ),
        ("__global__ void store(int* x) {}\0", "Line 1: the source holds a NUL character."),
    ],
)
def test_the_first_error_is_a_sentence_with_its_line(source: str, message: str) -> None:
    assert failed(source, "store").message == message


def test_a_relative_include_finds_nothing_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.h").write_text("int secret;")
    assert "secret.h" in failed('#include "secret.h"\n' + STORE, "store").message


def test_what_only_one_architecture_has_is_there_under_its_plain_name() -> None:
    made = build(Kernel(WGMMA), ["probe"], "sm_90")
    assert isinstance(made, Build)
    assert "wgmma.fence" in made.ptx and made.architecture == "sm_90"
    assert isinstance(build(Kernel(WGMMA), ["probe"], "sm_80"), BuildFailure)
