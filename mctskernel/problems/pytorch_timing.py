"""PyTorch's own time for a task, eager and compiled, interleaved with the start and the answer of a run.

    python -m mctskernel.problems.pytorch_timing

imports PyTorch once, and times each order that it reads in a process of its own: what PyTorch leaves in one stays
there. Kernels come to it built, from a confined worker.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import excerpt
from mctskernel.core.task import Shape, Task, TaskError, shape_label
from mctskernel.core.task_file import load_task
from mctskernel.problems import torch_reference
from mctskernel.problems.kernelbench.benchmark import NAME as KERNELBENCH
from mctskernel.problems.kernelbench.reference import (
    SOURCE_FILE,
    importable,
    made_model,
    module_function,
    read_module_problem,
    run_problem,
    without_running_statistics,
)
from mctskernel.problems.registry import benchmark_of
from mctskernel.problems.torch_reference import tensor_of
from mctskernel.problems.torch_task import Called, drawn_tensors
from mctskernel.profiling.candidate import Candidate
from mctskernel.profiling.gpu.cuda_driver import open_gpu
from mctskernel.profiling.processes.sessions import end_session
from mctskernel.profiling.processes.worker import compile_worker
from mctskernel.profiling.processes.worker_process import Prepared
from mctskernel.report.baselines import COMPILED, EAGER, Baselines, write_baselines
from mctskernel.report.view import View
from mctskernel.tree.blobs import get_kernel

LIMIT_SECONDS = 180.0
"""How long PyTorch may take; compiling with autotuning is most of it."""

MODE = "max-autotune-no-cudagraphs"
"""torch.compile's, without CUDA graphs, which change how kernels are launched."""

HEARTBEAT_SECONDS = 10.0

POLL_SECONDS = 0.1

START, BEST = "start", "best"


class Order(msgspec.Struct, frozen=True):
    """A task folder, and built kernels to time beside PyTorch, by name; whether torch.compile is timed as well."""

    task: str
    candidates: dict[str, Candidate]
    compiles: bool = True


class Times(msgspec.Struct, frozen=True):
    """Median seconds by contender; `problem` says why torch.compile has none."""

    shape: str
    seconds: dict[str, float]
    gpu: str
    torch: str
    problem: str = ""


def has_pytorch_reference(task: Task) -> bool:
    """Whether a task's reference is a PyTorch function that can be timed."""
    if task.space or task.unverified_reference:
        return False
    return benchmark_of(task) is not None or torch_reference.__name__ in task.reference_source


def time_baselines(
    view: View,
    say: Callable[[str], None],
    timer: PytorchTimer | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Baselines:
    """Time PyTorch beside the start and the answer of a run that measured them, and keep the times in its folder.

    A `timer` is one that has been opened before.

    Raises DeviceError where that isn't possible, RunError and TaskError.
    """
    if view.answer is None or view.answer.node is None:
        raise DeviceError("There is no answer to time beside PyTorch.")
    began = time.monotonic()
    configuration, fingerprint = view.manifest.configuration, view.manifest.fingerprint
    spec = view.folder.device_spec(configuration)
    nodes = {START: view.start, BEST: view.answer.node}
    candidates = {}
    with closing(compile_worker(spec, fingerprint["architecture"])) as compiler:
        for name, node in nodes.items():
            made = compiler.prepare(get_kernel(view.folder.blobs, view.node(node).kernel))
            if not isinstance(made, Prepared):
                raise DeviceError(f"Node {node} could not be built again: {made.message}")
            candidates[name] = made.candidate
    order = Order(str(view.folder.task.resolve()), candidates)
    with PytorchTimer() if timer is None else nullcontext(timer) as opened:
        found = opened.time(order, say, limit_seconds)
    baselines = Baselines(
        node=view.answer.node,
        shape=found.shape,
        start_seconds=found.seconds[START],
        best_seconds=found.seconds[BEST],
        eager_seconds=found.seconds[EAGER],
        compiled_seconds=found.seconds.get(COMPILED),
        gpu=found.gpu,
        torch=found.torch,
        problem=found.problem,
        spent_seconds=time.monotonic() - began,
    )
    write_baselines(view.folder.path, baselines)
    return baselines


class PytorchTimer:
    """A process that imports PyTorch when this is made, and times orders with it. Use it as a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mctskernel-pytorch-")
        self._process: subprocess.Popen[bytes] | None = None
        self._open()

    def __enter__(self) -> PytorchTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._folder.cleanup()

    def time(self, order: Order, say: Callable[[str], None], limit_seconds: float) -> Times:
        """The times, without torch.compile's where that isn't done in time. Raises DeviceError."""
        folder = Path(self._folder.name)
        given, result, done = (folder / name for name in ("order", "result", "done"))
        result.unlink(missing_ok=True)
        done.unlink(missing_ok=True)
        given.write_bytes(msgspec.msgpack.encode(order))
        process = self._open()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        began, beats, late = time.monotonic(), 0, False
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{folder}\n".encode())
                process.stdin.flush()
            while not done.exists() and process.poll() is None and not late:
                time.sleep(POLL_SECONDS)
                seconds = time.monotonic() - began
                late = seconds > limit_seconds
                if seconds >= (beats + 1) * HEARTBEAT_SECONDS:
                    beats += 1
                    say(f"PyTorch is being timed: {seconds:.0f} s")
        finally:
            if not done.exists():
                self._kill()
        if result.exists():
            found = msgspec.json.decode(result.read_bytes(), type=Times)
            if COMPILED not in found.seconds and not found.problem:
                how = f"it was not done after {limit_seconds:.0f} s" if late else "its process ended"
                found = msgspec.structs.replace(found, problem=f"torch.compile has no time: {how}.")
            return found
        reason = (
            f"it was not done after {limit_seconds:.0f} s" if late else excerpt(_last_line(folder / "log"))
        )
        raise DeviceError(f"PyTorch could not be timed: {reason}")

    def _open(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            command = [sys.executable, "-P", "-m", "mctskernel.problems.pytorch_timing"]
            with (Path(self._folder.name) / "log").open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )
        return self._process

    def _kill(self) -> None:
        """End the process and those that it started."""
        if self._process is None:
            return
        if self._process.returncode is None:
            end_session(self._process.pid)
            self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def measure(order: Order, write: Callable[[Times], None]) -> None:
    """Time eager PyTorch beside the kernels, then the compiled function as well; `write` gets both results.

    Raises TaskError, and CudaError for kernels that the GPU refuses.
    """
    import torch  # noqa: PLC0415 - an extra

    from mctskernel.profiling.pytorch.interleaved import (  # noqa: PLC0415 - imports PyTorch
        bound_plan,
        interleaved,
        loaded,
        timed,
    )

    torch.cuda.init()  # type: ignore[no-untyped-call]
    gpu = open_gpu().name
    task = load_task(Path(order.task))
    shape = task.search_shapes[0]
    with function_of(task, shape) as function, torch.no_grad():
        tensors = _tensors(task, shape)
        modules = {name: loaded(each) for name, each in order.candidates.items()}
        calls: dict[str, Callable[[], object]] = {
            name: bound_plan(task, shape, each, modules[name], tensors)[0]
            for name, each in order.candidates.items()
        }
        calls[EAGER] = partial(function, *tensors.values())

        def times(problem: str = "") -> Times:
            samples = interleaved({name: timed(call) for name, call in calls.items()})
            medians = {name: statistics.median(each) for name, each in samples.items()}
            return Times(shape_label(shape), medians, gpu, str(torch.__version__), problem)

        found = times()
        write(found)
        if not order.compiles:
            return
        compiled = partial(torch.compile(function, mode=MODE, dynamic=False), *tensors.values())
        try:
            compiled()
        except Exception as error:  # noqa: BLE001 - whatever it is costs this one time
            write(msgspec.structs.replace(found, problem=f"torch.compile fails: {excerpt(error)}"))
            return
        calls[COMPILED] = compiled
        write(times())


@contextmanager
def function_of(task: Task, shape: Shape, device: str = "cuda") -> Iterator[Called]:
    """The PyTorch function that a task's reference calls, of tensors on a device. Raises TaskError."""
    benchmark = benchmark_of(task)
    if benchmark is None or benchmark.name != KERNELBENCH:
        yield _called_by_reference(task, shape)
        return
    problem, names = read_module_problem(task.folder), run_problem(task.folder / SOURCE_FILE)
    model = without_running_statistics(made_model(names)).to(device)
    with importable(names):
        yield module_function(model, problem.arguments, problem.state, problem.scalars)


def _called_by_reference(task: Task, shape: Shape) -> Called:
    with torch_reference.captured() as functions:
        task.expected(dict.fromkeys(tensor.name for tensor in task.inputs), shape)  # type: ignore[arg-type] # not read
    if not functions:
        raise TaskError(f"{task.folder / 'reference.py'} calls no PyTorch function.")
    return functions[0]


def _tensors(task: Task, shape: Shape) -> Mapping[str, Any]:
    """The task's inputs on the GPU, in their own precision."""
    import torch  # noqa: PLC0415 - as above

    if task.make_inputs is None:
        return drawn_tensors(task.inputs, shape, "cuda")
    drawn = task.draw_inputs(shape, seed=0)
    return {
        tensor.name: tensor_of(drawn[tensor.name], getattr(torch, tensor.dtype)).to("cuda")
        for tensor in task.inputs
    }


def _main() -> None:
    """Time the orders in the folders that are read, each in a fork of this process."""
    import torch  # noqa: F401, PLC0415 - which every fork then has

    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        if (child := os.fork()) == 0:
            status = 1
            try:
                _answer(folder)
                status = 0
            except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(status)
        os.waitpid(child, 0)
        (folder / "done").touch()


def _answer(folder: Path) -> None:
    def write(found: Times) -> None:
        write_whole(folder / "result", msgspec.json.encode(found))

    measure(msgspec.msgpack.decode((folder / "order").read_bytes(), type=Order), write)


if __name__ == "__main__":
    _main()
