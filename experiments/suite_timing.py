"""A task's kernels interleaved with PyTorch in one process, for `mctskernel.experiments.suite`.

    python -m mctskernel.experiments.suite_timing --rows rows.jsonl TASK RUN...

Each RUN is a finished search of the task. Its starting kernel and its best one are interleaved with PyTorch's operator,
eager and compiled with max-autotune, on the same tensors, on PyTorch's stream, with the L2 cache flushed before every
run, and timed by CUDA events. Needs a GPU and the extra `gpu`; one row is appended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from mctskernel.core.device import DeviceError
from mctskernel.core.expression import evaluate
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.experiments.json_lines import append_line
from mctskernel.experiments.operators import OPERATORS, as_tensor, bound
from mctskernel.experiments.suite import TaskTimes
from mctskernel.profiling.candidate import Candidate, RefusedError, prepare
from mctskernel.profiling.ceilings import default_cache_folder, measured_ceilings
from mctskernel.profiling.gpu.buffers import LoadedKernel
from mctskernel.profiling.gpu.cuda_driver import CudaError, Gpu, PreparedLaunch, open_gpu
from mctskernel.profiling.gpu.protocol import Code
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.versions import package_versions
from mctskernel.report.view import load_view
from mctskernel.run import RunError
from mctskernel.tasks.builtin import find_task
from mctskernel.tree.blobs import get_kernel
from mctskernel.tree.journal import JournalError

COMPILE_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
"""With CUDA graphs PyTorch copies the inputs before a call, without them it launches from Python: both are timed."""

FLUSHED_BYTES = 1 << 28
"""Written before each run, so that nothing of the last one is left in the L2 cache."""


LAUNCH_CYCLES = 2_000_000
"""The GPU waits so long before each run, about a millisecond, in which a busy machine has launched all of it too."""

SECONDS, WARM_UP, FEWEST, MOST = 0.1, 3, 5, 100
"""Of each contender: the time of its samples, runs before them, and how many samples at least and at most."""

Run = Callable[[], float]
"""Runs a contender once and returns its seconds."""


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
    torch.cuda.init()  # type: ignore[no-untyped-call]
    gpu = open_gpu()
    seconds: dict[str, dict[str, tuple[float, ...]]] = {}
    differences: dict[str, float] = {}
    problems: dict[str, str] = {}
    for shape in task.search_shapes:
        with _contenders(task, shape, kernels, gpu.architecture, problems) as found:
            seconds[shape_label(shape)] = interleaved(
                {each: _timed(call) for each, call in found.calls.items()}
            )
            for each, difference in _differences(found).items():
                differences[each] = max(differences.get(each, 0.0), difference)
    return TaskTimes(
        task=task.name,
        seconds=seconds,
        differences=differences,
        floor_seconds=_floor(task, gpu),
        versions={
            "gpu": gpu.name,
            "uuid": gpu.uuid,
            **package_versions("torch", "triton", "nvidia-cuda-nvrtc"),
        },
        problem=" ".join(f"{each}: {said}" for each, said in problems.items()),
    )


def interleaved(runs: Mapping[str, Run], seed: int = 0) -> dict[str, tuple[float, ...]]:
    """The samples of each contender, in seconds. Every round runs each of them once, in a random order."""
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    rng = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {name: [] for name in runs}

    def goes_on(name: str) -> bool:
        taken = samples[name]
        return len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < SECONDS)

    while left := [name for name in runs if goes_on(name)]:
        for place in rng.permutation(len(left)):
            samples[left[place]].append(runs[left[place]]())
    return {name: tuple(taken) for name, taken in samples.items()}


def _floor(task: Task, gpu: Gpu) -> float:
    ceilings, shape = measured_ceilings(gpu, default_cache_folder()), task.search_shapes[0]
    tensor_cores = all(tensor.dtype in ("float16", "bfloat16") for tensor in task.outputs)
    rate = ceilings.tensor_flops_per_second if tensor_cores else ceilings.fp32_flops_per_second
    flops = float(evaluate(task.flops, shape)) if task.flops is not None else 0.0
    return max(task.compulsory_bytes(shape) / ceilings.copy_bytes_per_second, flops / rate)


Call = Callable[[], object]


@dataclass(frozen=True)
class _Contenders:
    """What each of them runs, what eager PyTorch makes of the inputs, and where each kernel leaves its output."""

    calls: Mapping[str, Call]
    expected: Tensor
    outputs: Mapping[str, Tensor]


@contextmanager
def _contenders(
    task: Task, shape: Shape, kernels: Mapping[str, Kernel], architecture: str, problems: dict[str, str]
) -> Iterator[_Contenders]:
    """All that can be built and called; `problems` has the others' errors."""
    inputs = task.draw_inputs(shape, seed=0)
    tensors = {each: as_tensor(array, "cuda") for each, array in inputs.items()}
    operator = bound(OPERATORS[task.name], task, inputs, shape, "cuda")
    calls: dict[str, Call] = {"eager": operator}
    outputs: dict[str, Tensor] = {}
    loaded: list[LoadedKernel] = []
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
                module = LoadedKernel(
                    [Code(made.cubin, tuple(made.entries.values()), ()) for made in candidate.builds]
                )
                loaded.append(module)
                calls[each], outputs[each] = _bound(task, shape, candidate, module, tensors)
            except (RefusedError, CudaError) as error:
                problems[each] = str(error)
        yield _Contenders(calls, operator(), outputs)
    finally:
        for module in loaded:
            module.unload()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class _LaunchPlan:
    """A kernel's launches, ready to go, after zeroing scratch that it wants zeroed.

    `memory` is all that they point into: PyTorch reuses what nobody holds.
    """

    launches: tuple[PreparedLaunch, ...]
    zeroed: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]

    def __call__(self) -> None:
        for buffer in self.zeroed:
            buffer.zero_()
        for launch in self.launches:
            launch()


def _bound(
    task: Task, shape: Shape, candidate: Candidate, module: LoadedKernel, tensors: Mapping[str, Tensor]
) -> tuple[Call, Tensor]:
    """One run of a kernel's launch plan on tensors, and its first output."""
    resolved = candidate.at(task, shape)
    outputs = {
        each.name: torch.zeros(each.extents(shape), dtype=getattr(torch, each.dtype), device="cuda")
        for each in task.outputs
    }
    scratch = {
        each.name: torch.zeros(each.nbytes, dtype=torch.uint8, device="cuda") for each in resolved.scratch
    }
    zeroed = tuple(scratch[each.name] for each in resolved.scratch if each.zero)
    memory = {**tensors, **outputs, **scratch}
    addresses = {each: tensor.data_ptr() for each, tensor in memory.items()}
    launches = tuple(
        PreparedLaunch(
            module.modules[candidate.index_of(launch)],
            candidate.entry_of(launch),
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            arguments=candidate.arguments(launch, addresses),
        )
        for launch in resolved.launches
    )
    return _LaunchPlan(launches, zeroed, tuple(memory.values())), outputs[task.outputs[0].name]


def _timed(call: Call) -> Run:
    """Seconds of one call by the GPU's clock, with nothing of the last one in the L2 cache."""
    flushed = _flush_buffer()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def run() -> float:
        flushed.zero_()
        torch.cuda._sleep(LAUNCH_CYCLES)  # type: ignore[no-untyped-call]
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e-3

    return run


def _differences(found: _Contenders) -> dict[str, float]:
    """How far each kernel's output is from eager PyTorch's: the norm of the difference over that of the output."""
    wanted = found.expected.double().flatten()
    scale = float(wanted.norm()) or 1.0
    return {
        each: float((output.double().flatten() - wanted).norm()) / scale
        for each, output in found.outputs.items()
    }


@cache
def _flush_buffer() -> Tensor:
    return torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")


if __name__ == "__main__":
    main()
