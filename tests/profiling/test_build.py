"""What the compiler's two products and its report look like from outside."""

from pathlib import Path

import pytest

from mctskernel.core.evaluation import Resources
from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, BuildFailure, build, header_folders
from mctskernel.profiling.gpu.ceiling_kernels import wgmma_source

STORE = "__global__ void store(float* x) { x[threadIdx.x] = 1.0f; }"


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


def test_a_name_that_begins_another_is_not_confused_with_it() -> None:
    source = "__global__ void a(int* x) { *x = 1; } __global__ void ab(int* x) { *x = 2; }"
    assert built(source, "a", "ab").entries == {"a": "_Z1aPi", "ab": "_Z2abPi"}


def test_resources_are_the_compilers_own() -> None:
    source = """
    __global__ void staged(float* x) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        x[threadIdx.x] = s[63 - threadIdx.x];
    }
    __global__ void __launch_bounds__(1024, 2) spilling(float* x) {
        float v[64];
        #pragma unroll
        for (int i = 0; i < 64; i++) v[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = v[63 - i] * v[(i * 7) % 64];
    }"""
    result = built(source, "staged", "spilling")
    staged, spilling = result.resources_of("staged"), result.resources_of("spilling")
    assert staged == Resources("staged", staged.registers, 256)
    assert 4 <= staged.registers <= 32
    assert spilling.registers == 32
    assert spilling.spill_store_bytes > 0
    assert spilling.spill_load_bytes > 0
    assert spilling.stack_bytes > 0


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


@pytest.mark.slow
def test_headers_of_cuda_are_found_and_no_path_of_this_machine_is_shown() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    #include <mma.h>
    #include <cooperative_groups.h>
    #include <cuda_pipeline.h>
    __global__ void store(__half* x) { x[0] = __hadd(x[1], x[2]); undefined(); }"""
    failure = failed(source, "store")
    assert failure.message == 'Line 7: identifier "undefined" is undefined.'
    assert "/" not in failure.log


def test_a_relative_include_finds_nothing_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.h").write_text("int secret;")
    assert "secret.h" in failed('#include "secret.h"\n' + STORE, "store").message


def test_what_only_one_architecture_has_is_there_under_its_plain_name() -> None:
    made = build(Kernel(wgmma_source()), ["probe"], "sm_90")
    assert isinstance(made, Build)
    assert "wgmma.mma_async" in made.ptx and made.architecture == "sm_90"
    assert isinstance(build(Kernel(wgmma_source()), ["probe"], "sm_80"), BuildFailure)


def test_headers_that_pytorch_does_not_bring_are_taken_from_a_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, toolkit = tmp_path / "runtime", tmp_path / "toolkit"
    runtime.mkdir()
    (toolkit / "include" / "crt").mkdir(parents=True)
    (toolkit / "include" / "crt" / "mma.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setattr("mctskernel.profiling.build.find_nvidia_header_directory", lambda _: str(runtime))
    folders = header_folders.__wrapped__()
    assert folders == (str(runtime), str(runtime), str(toolkit / "include"))
