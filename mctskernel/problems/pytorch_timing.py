"""PyTorch's own time for a task, eager and compiled, interleaved with the start and the answer of a run.

The function is compiled while the run is still searched, in a process of its own (`ForkedCall`): what PyTorch leaves in
one stays there. Whatever runs on the GPU holds its lock, so that no search is disturbed. Kernels come built, from a
confined worker.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from mctskernel.core.device import DeviceError
from mctskernel.core.documents import excerpt
from mctskernel.core.dtypes import DTYPE_BYTES
from mctskernel.core.expression import evaluate
from mctskernel.core.task import Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task, read_text
from mctskernel.problems import torch_reference
from mctskernel.problems.kernelbench import reference as kernelbench
from mctskernel.problems.kernelbench.reference import (
    SOURCE_FILE,
    importable,
    made_model,
    module_function,
    run_problem,
    without_running_statistics,
)
from mctskernel.problems.problem import read_record
from mctskernel.problems.registry import benchmark_of
from mctskernel.problems.torch_reference import tensors_of
from mctskernel.problems.torch_task import Called, called, drawn_tensors
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.ceilings import Ceilings, documented_ceilings
from mctskernel.profiling.gpu.cuda_driver import open_gpu, visible_gpus
from mctskernel.profiling.gpu.lock import MEASURING, GpuLock, held_seconds
from mctskernel.profiling.processes.forked import Caller, ForkedCall
from mctskernel.profiling.processes.worker import compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.report.baselines import AUTOTUNED, COMPILED, EAGER, Baselines, write_baselines
from mctskernel.report.view import View, load_view
from mctskernel.tasks.builtin import builtin_tasks
from mctskernel.tree.blobs import get_kernel

LIMIT_SECONDS = 180.0  # how long compiling may take; autotuning is most of it

MODES = {COMPILED: "default", AUTOTUNED: "max-autotune-no-cudagraphs"}
"""torch.compile's, without CUDA graphs, which change how kernels are launched."""

FIRST = (
    "torch",
    "torch._inductor.compile_fx",
    "torch._inductor.runtime.benchmarking",
    "torch.utils.flop_counter",
    "mctskernel.problems.pytorch_timing",
)
"""What the processes that time have imported before they begin."""

SHARE_OF_CORES = 16  # one in so many cores compiles a function
NICENESS = 10  # of what compiles: searches go first
TIMING_SECONDS = 60.0  # what the rest may take
COPIED_BYTES = 1 << 30  # more than any L2 cache
LINGER_SECONDS = 0.03  # how long the GPU is kept after autotuning has timed one kernel, for the next one
MOST_HELD_SECONDS = 0.5  # how long it is kept for several of them while others wait

START, BEST = "start", "best"


def has_pytorch_reference(task: Task) -> bool:
    """Whether a task's reference is a PyTorch function that can be timed."""
    if task.space or task.unverified_reference:
        return False
    return benchmark_of(task) is not None or torch_reference.__name__ in task.reference_source


def has_operator(task: Task) -> bool:
    """Whether it is a built-in task, for each of which PyTorch has an operator (`mctskernel.problems.operators`)."""
    folder = builtin_tasks().get(task.name)
    return folder is not None and task.reference_source == read_text(folder / "reference.py")


def begin_timing(task: Path, gpu: str, compile_seconds: float, log: Path) -> ForkedCall[Baselines]:
    """Begin to compile the function of a task folder on a GPU, by its UUID or the first one, for so many seconds.

    It waits for the folder of a run that has ended (`send`), and returns the times when it has kept them there. It
    sends a sentence at each step.
    """
    return ForkedCall(time_baselines, task.resolve(), gpu, time.monotonic() + compile_seconds, log=log)


class _LateError(BaseException):
    """Passes through what turns exceptions of a compiler into others."""


class _Gate:
    """The GPU's lock, which may be entered again by what holds it."""

    def __init__(self, uuid: str) -> None:
        self._lock, self._mutex = GpuLock(uuid), threading.Lock()
        self.measuring = GpuLock(f"{MEASURING}-{uuid}")
        self._held = ExitStack()
        self._depth, self._is_locked, self._since = 0, False, 0.0

    @contextmanager
    def held(self, linger_seconds: float = 0.0) -> Iterator[None]:
        """Hold the lock, and for so long after that, so that to enter again takes no waiting; others wait a while."""
        with self._mutex:
            self._depth += 1
            if not self._is_locked:
                self._held.enter_context(self._lock.held())
                self._is_locked, self._since = True, time.monotonic()
        try:
            yield
        finally:
            with self._mutex:
                self._depth -= 1
            is_long = time.monotonic() - self._since > MOST_HELD_SECONDS
            if linger_seconds and not (is_long and self._lock.is_contended):
                threading.Timer(linger_seconds, self._release).start()
            else:
                self._release()

    def _release(self) -> None:
        with self._mutex:
            if not self._depth:
                self._held.close()
                self._is_locked = False


def time_baselines(caller: Caller, task_folder: Path, uuid: str, deadline: float) -> Baselines:
    """Compile the function of a task, wait for a run, and time PyTorch beside its start and its answer.

    It compiles until `deadline` by `time.monotonic`. Raises DeviceError where that isn't possible, RunError and
    TaskError, and CudaError for kernels that the GPU refuses.
    """
    import torch  # noqa: PLC0415 - an extra
    from torch._inductor import config  # noqa: PLC0415

    from mctskernel.profiling.pytorch.interleaved import (  # noqa: PLC0415 - imports PyTorch
        bound_plan,
        interleaved,
        loaded,
        timed,
    )

    began = time.monotonic()
    os.nice(NICENESS)
    if not torch.cuda.is_available():
        raise DeviceError("PyTorch finds no GPU here.")
    # Others compile as well.
    config.compile_threads = max(2, (os.cpu_count() or 1) // SHARE_OF_CORES)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(config.compile_threads)  # of autotuning
    torch.cuda.set_device(next((each.index for each in visible_gpus() if each.uuid == uuid), 0))
    gpu = open_gpu(uuid)
    gate = _Gate(gpu.uuid)
    task = load_task(task_folder)
    shape = task.search_shapes[0]
    with function_of(task, shape, gate=gate.held()) as function, torch.no_grad():
        with gate.held():
            tensors = _tensors(task, shape)
            torch.cuda.synchronize()
        calls: dict[str, Callable[[], object]] = {EAGER: partial(function, *tensors.values())}
        problems: list[str] = []
        for name, mode in MODES.items():
            caller.say(f"Compiling for {name}")
            compiled = partial(torch.compile(function, mode=mode, dynamic=False), *tensors.values())
            if problem := _compile(compiled, gate, deadline - time.monotonic()):
                problems.append(f"{name} has no time: {problem}.")
            else:
                calls[name] = compiled
        caller.say("Compiled")
        view = load_view(caller.receive())
        if view.answer is None or view.answer.node is None:
            raise DeviceError("There is no answer to time beside PyTorch.")
        nodes = {BEST: view.answer.node} | ({START: view.start} if view.start != view.answer.node else {})
        candidates = _built(view, nodes)
        with suppress(OSError):  # only administrators may
            os.nice(-NICENESS)
        with gate.held(), gate.measuring.held():
            flops = counted_flops(calls[EAGER])
            copied = _copied_bytes_per_second()
            for name, each in candidates.items():
                calls[name] = bound_plan(task, shape, each, loaded(each), tensors)[0]
            samples = interleaved({name: timed(call) for name, call in calls.items()})
    medians = {name: statistics.median(each) for name, each in samples.items()}
    baselines = Baselines(
        node=view.answer.node,
        shape=shape_label(shape),
        start_seconds=medians.pop(START, medians[BEST]),
        best_seconds=medians.pop(BEST),
        seconds=medians,
        gpu=gpu.name,
        torch=str(torch.__version__),
        problem=" ".join(problems),
        floor_seconds=floor_seconds(task, shape, flops, copied, documented_ceilings(gpu)),
        spent_seconds=time.monotonic() - began,
        gpu_seconds=held_seconds(),
    )
    write_baselines(view.folder.path, baselines)
    return baselines


def floor_seconds(
    task: Task, shape: Shape, flops: Mapping[bool, float], copied_bytes_per_second: float, most: Ceilings
) -> float:
    """The roofline of a function: its compulsory bytes at the rate of a copy, or its arithmetic at the documented rate.

    `flops` are operations of convolutions (True), which PyTorch computes in TF32 at half the rate of 16-bit numbers,
    and of products, which are in fp32 unless the tensors are narrower.
    """
    narrow = min(DTYPE_BYTES[tensor.dtype] for tensor in task.inputs) < DTYPE_BYTES["float32"]
    tensor, fp32 = most.tensor_flops_per_second, most.fp32_flops_per_second
    convolving = flops.get(True, 0.0) / (tensor if narrow else tensor / 2)
    multiplying = flops.get(False, 0.0) / (tensor if narrow else fp32)
    return max(task.compulsory_bytes(shape) / copied_bytes_per_second, convolving + multiplying)


def _copied_bytes_per_second() -> float:
    """The rate at which PyTorch copies memory to memory, bytes read and written."""
    import torch  # noqa: PLC0415 - as above

    from mctskernel.profiling.pytorch.interleaved import interleaved, timed  # noqa: PLC0415 - imports PyTorch

    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    (samples,) = interleaved({"copy": timed(lambda: target.copy_(source))}).values()
    return 2 * COPIED_BYTES / statistics.median(samples)


def counted_flops(call: Callable[[], object]) -> dict[bool, float]:
    """Operations of a call's convolutions (True) and of its products (False), by the plain algorithm."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - an extra

    with FlopCounterMode(display=False) as counter:
        call()
    found = {True: 0.0, False: 0.0}
    for operator, count in counter.get_flop_counts().get("Global", {}).items():
        found["conv" in str(operator)] += count
    return found


def product_flops(task: Task) -> Mapping[str, float]:
    """Operations by search shape's label, stated ones first; found without computing, and left out where that fails."""
    if task.flops is not None:
        names = task.scalars
        return {
            shape_label(each): float(evaluate(task.flops, {**names, **each})) for each in task.search_shapes
        }
    if not has_pytorch_reference(task):
        return {}
    found = {}
    for shape in task.search_shapes:
        try:
            with function_of(task, shape, "meta") as function:
                flops = counted_flops(partial(called, function, task.inputs, shape, "meta"))
            found[shape_label(shape)] = sum(flops.values())
        except Exception:  # noqa: BLE001, S112 - a problem's own code; without it a sentence is missing
            continue
    return found


def _compile(call: Callable[[], object], gate: _Gate, seconds: float) -> str:
    """Compile a function by calling it, or say why it can't be in so many seconds."""
    import torch  # noqa: PLC0415 - as above
    from torch._inductor.runtime.benchmarking import benchmarker  # noqa: PLC0415

    kind = type(benchmarker)
    original = kind.benchmark_gpu

    def benchmark_gpu(own: Any, run: Callable[[], object], *arguments: Any, **options: Any) -> Any:
        while not gate.measuring.is_free:
            time.sleep(LINGER_SECONDS)
        with suppress(Exception):
            run()  # the first time it compiles for seconds, in which the GPU is for others
        with gate.held(LINGER_SECONDS):
            return original(own, run, *arguments, **options)

    if seconds <= 0:
        return "the time was over before"
    try:
        with patch.object(kind, "benchmark_gpu", benchmark_gpu), _alarm(seconds):
            call()
            torch.cuda.synchronize()
    except _LateError:
        return f"it was not compiled after {seconds:.0f} s"
    except Exception as error:  # noqa: BLE001 - whatever it is costs this one time
        return f"torch.compile fails: {excerpt(error)}"
    return ""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _LateError in this block when it takes longer."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _built(view: View, nodes: Mapping[str, int]) -> dict[str, Candidate]:
    """Kernels of a run, built in a confined process. Raises DeviceError."""
    spec = view.folder.device_spec(view.manifest.configuration)
    candidates = {}
    with closing(compile_worker(spec, view.manifest.fingerprint["architecture"])) as compiler:
        for name, node in nodes.items():
            made = compiler.prepare(get_kernel(view.folder.blobs, view.node(node).kernel))
            if not isinstance(made, Prepared):
                raise DeviceError(f"Node {node} could not be built again: {made.message}")
            candidates[name] = made.candidate
    return candidates


@contextmanager
def function_of(
    task: Task, shape: Shape, device: str = "cuda", gate: AbstractContextManager[None] | None = None
) -> Iterator[Called]:
    """The PyTorch function that a task's reference calls, or a built-in task's operator.

    It takes tensors on a device, and is moved there within `gate`. Raises TaskError.
    """
    if has_operator(task):
        from mctskernel.problems.operators import operator_of  # noqa: PLC0415 - imports PyTorch

        yield operator_of(task, shape)
        return
    benchmark = benchmark_of(task)
    if benchmark is None or benchmark.name != kernelbench.NAME:
        with torch_reference.captured() as functions:
            task.expected(dict.fromkeys(tensor.name for tensor in task.inputs), shape)  # type: ignore[arg-type] # not read
        if not functions:
            raise TaskError(f"{task.folder / 'reference.py'} calls no PyTorch function.")
        yield functions[0]
        return
    problem = read_record(task.folder, kernelbench.ModuleProblem)
    names = run_problem(task.folder / SOURCE_FILE)
    model = without_running_statistics(made_model(names))
    with gate or nullcontext():
        model = model.to(device)
    with importable(names):
        yield module_function(model, problem.arguments, problem.state, problem.scalars)


def _tensors(task: Task, shape: Shape) -> Mapping[str, Any]:
    """The task's inputs on the GPU, in their own precision."""
    if task.make_inputs is None:
        return drawn_tensors(task.inputs, shape, "cuda")
    drawn = tensors_of(task.draw_inputs(shape, seed=0), task.inputs)
    return {name: tensor.to("cuda") for name, tensor in drawn.items()}
