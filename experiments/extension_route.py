"""The usual way to judge a candidate: a PyTorch extension, `torch.allclose`, `do_bench`, and `ncu` around a process.

    python -m mctskernel.experiments.extension_route judge TASK --variants 2 --out FILE.json

The starting kernel of a task is compiled by `torch.utils.cpp_extension.load_inline` behind a host function that its
launch plan becomes, compared with PyTorch's operator, timed by `triton.testing.do_bench`, and profiled by `ncu` in a
process that loads the extension and runs it once. Needs a GPU, nvcc, ninja and the extra `gpu`. What fails ends the
stages: its sentence is the problem.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

import click
import msgspec

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import ResolvedLaunch, ResolvedPlan, plan_of, resolve
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.profiling.counter_sets import DEFAULT_METRICS
from mctskernel.profiling.stages import Stages
from mctskernel.tasks import find_task

DEFAULT_SHARED_BYTES = 48 << 10
"""Shared memory that a block gets without asking (CUDA C++ programming guide, technical specifications)."""

POINTER = """\
#include <vector>
#include <c10/cuda/CUDAStream.h>

// Becomes a pointer to whatever the kernel's parameter points to.
struct Pointer {
    void* address;
    template <class T> operator T*() const { return static_cast<T*>(address); }
};
"""


class Judged(msgspec.Struct, frozen=True):
    """One variant: seconds by stage as far as it came, its time, and why it came no further."""

    stage_seconds: dict[str, float]
    seconds: float | None = None
    problem: str = ""


class Extension(Protocol):
    """The compiled extension."""

    def run(self, tensors: Sequence[object]) -> None:
        """Launch the plan once on the task's buffers and the scratch buffers."""


@click.group()
def main() -> None:
    """Judge kernels as PyTorch extensions."""


@main.command()
@click.argument("name", metavar="TASK")
@click.option("--variants", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def judge(name: str, variants: int, out: Path) -> None:
    """Judge copies of TASK's starting kernel, each compiled anew, and write a JSON list."""
    task = load_task(find_task(name))
    judged: list[Judged] = []
    for number in range(variants):
        judged.append(judge_variant(task, number))
        out.write_bytes(msgspec.json.encode(judged))


@main.command()
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("tensors", type=click.Path(path_type=Path))
def launch(library: Path, tensors: Path) -> None:
    """Load an extension and run it once on saved tensors: what `ncu` looks at."""
    import torch  # noqa: PLC0415 - needed on a GPU machine alone

    buffers = torch.load(tensors, map_location="cuda", weights_only=True)
    _load(library).run(buffers)
    torch.cuda.synchronize()


def judge_variant(task: Task, number: int) -> Judged:
    """Build, verify, time and profile one copy of the starting kernel at the first search shape."""
    stages = Stages()
    with tempfile.TemporaryDirectory() as folder:
        try:
            seconds = _judge(task, f"variant_{number}", Path(folder), stages)
        except (ImportError, OSError, RuntimeError) as error:
            sentence = next((line for line in str(error).splitlines() if line.strip()), "")
            return Judged(stages.seconds, None, f"{type(error).__name__}: {sentence}")
    return Judged(stages.seconds, seconds)


def host_source(kernel: Kernel, plan: ResolvedPlan, buffers: Sequence[str]) -> str:
    """CUDA C++ of an extension: the kernel, and a host function `run` that launches its plan on these buffers."""
    index = {name: number for number, name in enumerate(buffers)}
    zeroed = [f"    tensors[{index[each.name]}].zero_();" for each in plan.scratch if each.zero]
    launches = [line for launch in plan.launches for line in _launch_lines(launch, index)]
    body = "\n".join([*zeroed, "    auto stream = c10::cuda::getCurrentCUDAStream();", *launches])
    return f"{POINTER}\n{kernel.source}\n\nvoid run(std::vector<torch::Tensor> tensors) {{\n{body}\n}}\n"


def ncu_command(metrics: Sequence[str], kernels: Sequence[str], program: Sequence[str]) -> list[str]:
    """The command that reads metrics of the kernels that a program launches."""
    names = f"regex:^({'|'.join(dict.fromkeys(kernels))})$"
    return ["ncu", "--csv", "--kernel-name", names, "--metrics", ",".join(metrics), *program]


def _launch_lines(launch: ResolvedLaunch, index: dict[str, int]) -> list[str]:
    lines = []
    if launch.shared_bytes > DEFAULT_SHARED_BYTES:
        limit = "cudaFuncAttributeMaxDynamicSharedMemorySize"
        lines.append(f"    cudaFuncSetAttribute({launch.kernel}, {limit}, {launch.shared_bytes});")
    grid, block = (f"dim3({x}, {y}, {z})" for x, y, z in (launch.grid, launch.block))
    arguments = ", ".join(
        f"Pointer{{tensors[{index[each]}].data_ptr()}}" if isinstance(each, str) else repr(each)
        for each in launch.arguments
    )
    lines.append(f"    {launch.kernel}<<<{grid}, {block}, {launch.shared_bytes}, stream>>>({arguments});")
    return lines


def _judge(task: Task, name: str, folder: Path, stages: Stages) -> float:
    # Imported here: the generated source is tested where none of it is installed.
    import torch  # noqa: PLC0415 - as said above
    from torch.utils import cpp_extension  # noqa: PLC0415 - as said above
    from triton.testing import do_bench  # noqa: PLC0415 - as said above

    from mctskernel.experiments.torch_baselines import OPERATORS, as_tensor, bound  # noqa: PLC0415 - as said above

    load_inline: Callable[..., Extension] = cpp_extension.load_inline
    shape, kernel = task.search_shapes[0], task.starting_kernel
    plan = resolve(plan_of(kernel), task.names(shape, kernel), task.buffer_names)
    inputs = task.draw_inputs(shape, seed=0)
    expected = bound(OPERATORS[task.name], task, inputs, shape, "cuda")()
    tensors = [as_tensor(inputs[each.name], "cuda") for each in task.inputs]
    tensors += [torch.empty_like(expected)]
    tensors += [
        torch.empty(each.elements, dtype=getattr(torch, each.dtype), device="cuda") for each in plan.scratch
    ]
    buffers = (*task.buffer_names, *(each.name for each in plan.scratch))
    with stages.timed("build"):
        built = load_inline(
            name=name,
            cpp_sources="void run(std::vector<torch::Tensor> tensors);",
            cuda_sources=host_source(kernel, plan, buffers),
            functions=["run"],
            build_directory=str(folder),
        )
    with stages.timed("verify"):
        built.run(tensors)
        output = tensors[len(task.inputs)]
        if not torch.allclose(output, expected, rtol=1e-3, atol=1e-3):
            raise RuntimeError("The output is not close to PyTorch's.")
    with stages.timed("time"):
        seconds = float(do_bench(lambda: built.run(tensors), return_mode="median")) / 1e3
    torch.save(tensors, folder / "tensors.pt")
    with stages.timed("counters"):
        _profile(folder / f"{name}.so", folder / "tensors.pt", [each.kernel for each in plan.launches])
    return seconds


def _profile(library: Path, tensors: Path, kernels: Sequence[str]) -> None:
    if shutil.which("ncu") is None:
        raise OSError("ncu is not on the PATH: it comes with Nsight Compute.")
    program = [sys.executable, "-m", "mctskernel.experiments.extension_route", "launch"]
    command = ncu_command(DEFAULT_METRICS, kernels, [*program, str(library), str(tensors)])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or DEFAULT_METRICS[0] not in done.stdout:
        said = [
            line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "Error" in line
        ]
        raise OSError(said[0] if said else f"ncu ended with status {done.returncode} and no metrics.")


def _load(library: Path) -> Extension:
    found = importlib.util.spec_from_file_location(library.stem, library)
    if found is None or found.loader is None:
        raise ImportError(f"{library} is no extension.")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return cast("Extension", module)


if __name__ == "__main__":
    main()
