"""A task's kernels interleaved with PyTorch in one process, for `mctskernel.experiments.suite`.

    python -m mctskernel.experiments.suite_timing --rows rows.jsonl TASK RUN...

Each RUN is a finished search of the task. Its starting kernel and its best one are interleaved with PyTorch's operator,
eager and compiled with max-autotune, on the same tensors, on PyTorch's stream, with the L2 cache flushed before every
run, and timed by CUDA events. Needs a GPU and the extra `gpu`; one row is appended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import torch

from mctskernel.core.device import DeviceError
from mctskernel.core.expression import evaluate
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.experiments.json_lines import append_line
from mctskernel.experiments.operators import OPERATORS, as_tensor, bound
from mctskernel.experiments.suite import TaskTimes
from mctskernel.profiling.architecture import architecture_of
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.ceilings import architecture_ceilings, documented_ceilings
from mctskernel.profiling.gpu.buffers import LoadedKernel
from mctskernel.profiling.gpu.cuda_driver import CudaError, Gpu, open_gpu
from mctskernel.profiling.pytorch.interleaved import Call, bound_plan, interleaved, loaded, timed
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.versions import package_versions
from mctskernel.report.view import load_view
from mctskernel.run import RunError
from mctskernel.tasks.builtin import find_task
from mctskernel.tree.blobs import get_kernel
from mctskernel.tree.journal import JournalError

COMPILE_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
"""With CUDA graphs PyTorch copies the inputs before a call, without them it launches from Python: both are timed."""


@click.command()
@click.argument("name", metavar="TASK")
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--rows", type=click.Path(path_type=Path), required=True, help="Append the row there.")
def main(name: str, runs: tuple[Path, ...], rows: Path) -> None:
    """Time the kernels of RUNS interleaved with PyTorch's operator."""
    if not torch.cuda.is_available():
        click.echo("PyTorch finds no GPU.", err=True)
        sys.exit(1)
    try:
        append_line(rows, time_task(name, kernels_of(runs)))
    except (TaskError, RunError, JournalError, DeviceError) as error:
        raise click.ClickException(str(error)) from error


def kernels_of(runs: tuple[Path, ...]) -> dict[str, Kernel]:
    """The starting kernel and the best one of each run, by contender: "cuda start", "cuda best" and so on.

    Raises RunError and JournalError.
    """
    found: dict[str, Kernel] = {}
    for path in runs:
        view = load_view(path)
        for word, node in (("start", view.tree.nodes[0]), ("best", view.best)):
            kernel = get_kernel(view.folder.blobs, node.kernel)
            found[f"{kernel.language} {word}"] = kernel
    return found


def time_task(name: str, kernels: Mapping[str, Kernel]) -> TaskTimes:
    """Samples of all contenders at each search shape. What can't be run has a sentence in `problem`."""
    task = load_task(find_task(name))
    torch.cuda.init()  # type: ignore[no-untyped-call] # PyTorch's has no types
    gpu = open_gpu()
    seconds: dict[str, dict[str, tuple[float, ...]]] = {}
    problems: dict[str, str] = {}
    for shape in task.search_shapes:
        with _contenders(task, shape, kernels, gpu.architecture, problems) as found:
            seconds[shape_label(shape)] = interleaved({each: timed(call) for each, call in found.items()})
    return TaskTimes(
        task=task.name,
        seconds=seconds,
        floor_seconds=_floor(task, gpu),
        versions={
            "gpu": gpu.name,
            "uuid": gpu.uuid,
            **package_versions("torch", "triton", "nvidia-cuda-nvrtc"),
        },
        problem=" ".join(f"{each}: {said}" for each, said in problems.items()),
    )


def _floor(task: Task, gpu: Gpu) -> float:
    described, shape = architecture_of(gpu.architecture, gpu.name), task.search_shapes[0]
    ceilings = architecture_ceilings(described) if described else documented_ceilings(gpu)
    tensor_cores = all(tensor.dtype in ("float16", "bfloat16") for tensor in task.outputs)
    rate = ceilings.tensor_flops_per_second if tensor_cores else ceilings.fp32_flops_per_second
    flops = float(evaluate(task.flops, shape)) if task.flops is not None else 0.0
    return max(task.compulsory_bytes(shape) / ceilings.copy_bytes_per_second, flops / rate)


@contextmanager
def _contenders(
    task: Task, shape: Shape, kernels: Mapping[str, Kernel], architecture: str, problems: dict[str, str]
) -> Iterator[Mapping[str, Call]]:
    """What each contender runs, of those that can be built and called; `problems` has the others' errors."""
    inputs = task.draw_inputs(shape, seed=0)
    tensors = {each: as_tensor(array, "cuda") for each, array in inputs.items()}
    operator = bound(OPERATORS[task.name], task, inputs, shape, "cuda")
    calls: dict[str, Call] = {"eager": operator}
    modules: list[LoadedKernel] = []
    try:
        for mode in COMPILE_MODES:
            compiled = torch.compile(operator.func, mode=mode, dynamic=False)
            call = partial(compiled, **operator.keywords)
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever PyTorch makes of an operator costs one contender
                problems[mode] = f"{type(error).__name__}: {error}".splitlines()[0]
            else:
                calls[mode] = call
        for each, kernel in kernels.items():
            try:
                candidate = prepare(task, kernel, architecture, Stages())
                modules.append(loaded(candidate))
                calls[each], _ = bound_plan(task, shape, candidate, modules[-1], tensors)
            except (RefusedError, CudaError) as error:
                problems[each] = str(error)
        yield calls
    finally:
        for module in modules:
            module.unload()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
