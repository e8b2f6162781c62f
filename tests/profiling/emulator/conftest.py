"""CUDA C++ to PTX with NVRTC, and PTX of a few instructions; neither a driver nor a GPU is needed."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cuda.pathfinder import find_nvidia_header_directory

from mctskernel.profiling.build import Compiled, compile_source
from mctskernel.profiling.emulator import Geometry, GlobalMemory, Module, execute, parse_ptx
from mctskernel.profiling.emulator.ptx import SIZES


@functools.cache
def compile_cuda(source: str, arch: str = "sm_90") -> Module:
    options = (
        f"-arch={arch}",
        "--std=c++17",
        "--generate-line-info",
        f"--include-path={find_nvidia_header_directory('cudart')}",
    )
    made = compile_source(source, "kernel.cu", options)
    assert isinstance(made, Compiled), made
    return parse_ptx(made.ptx)


@pytest.fixture
def cuda() -> Callable[..., Module]:
    """The compiler, cached by source and architecture."""
    return compile_cuda


@functools.cache
def _kernel(body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], uniform: tuple[int, ...]) -> Module:
    """A kernel that reads %a0, %a1, ... by lane (by launch where uniform), runs the body and writes %d0, ...."""
    parameters = [f".param .{t if n in uniform else 'u64'} in{n}" for n, t in enumerate(inputs)]
    parameters += [f".param .u64 out{n}" for n in range(len(outputs))]
    text = [
        ".version 8.5\n.target sm_90\n.address_size 64",
        f".visible .entry k({', '.join(parameters)})\n{{",
        ".reg .b64 %pointer; .reg .b64 %offset; .reg .b32 %i, %t<4>; .reg .pred %p<4>; .reg .b64 %w<4>;",
        "mov.u32 %i, %ctaid.x; mov.u32 %t0, %ntid.x; mov.u32 %t1, %tid.x; mad.lo.u32 %i, %i, %t0, %t1;",
    ]
    for n, t in enumerate(inputs):
        size = SIZES[t]
        text.append(f".reg .{'b' + str(8 * size) if size < 4 or 'x2' in t else t} %a{n};")
        kind = f"b{8 * size}" if t[0] not in "f" or "x2" in t or size < 4 else t
        if n in uniform:
            text.append(f"ld.param.{kind} %a{n}, [in{n}];")
        else:
            text.append(f"ld.param.u64 %pointer, [in{n}]; mul.wide.u32 %offset, %i, {size};")
            text.append(f"add.u64 %pointer, %pointer, %offset; ld.global.{kind} %a{n}, [%pointer];")
    text += [
        f".reg .{'b' + str(8 * SIZES[t]) if SIZES[t] < 4 or 'x2' in t else t} %d{n};"
        for n, t in enumerate(outputs)
    ]
    text.append(body)
    for n, t in enumerate(outputs):
        text.append(f"ld.param.u64 %pointer, [out{n}]; mul.wide.u32 %offset, %i, {SIZES[t]};")
        text.append(f"add.u64 %pointer, %pointer, %offset; st.global.b{8 * SIZES[t]} [%pointer], %d{n};")
    return parse_ptx("\n".join([*text, "ret;\n}"]))


Inputs = Sequence[tuple[str, "np.ndarray | np.generic"]]


def run_lanes(
    body: str, inputs: Inputs, outputs: Sequence[str], *, lanes: int, block: int = 32
) -> list[np.ndarray]:
    """Bits of what a PTX body computes: arrays are inputs by lane, numpy scalars the same for every lane."""
    uniform = tuple(n for n, (_, value) in enumerate(inputs) if value.ndim == 0)
    module = _kernel(body, tuple(t for t, _ in inputs), tuple(outputs), uniform)
    memory = GlobalMemory()
    arguments: list[object] = [
        value.tobytes() if n in uniform else memory.add(f"in{n}", np.asarray(value))
        for n, (_, value) in enumerate(inputs)
    ]
    arguments += [memory.add(f"out{n}", lanes * SIZES[t]) for n, t in enumerate(outputs)]
    done = execute(module, "k", Geometry((lanes // block, 1, 1), (block, 1, 1)), arguments, memory)
    assert [f.message for f in done.findings] == []
    return [memory.array(f"out{n}", f"u{SIZES[t]}") for n, t in enumerate(outputs)]


@pytest.fixture
def lanes() -> Callable[..., list[np.ndarray]]:
    """Runs a few PTX instructions over many lanes."""
    return run_lanes
