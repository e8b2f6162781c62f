"""What a problem's own module takes on this machine's GPU, eager and compiled: what benchmarks compare with.

Written beside a run, since a time means something on its device alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.task import Task, TaskError
from mctskernel.problems.kernelbench.reference import (
    SOURCE_FILE,
    importable,
    made_model,
    module_function,
    read_module_problem,
    run_problem,
    without_running_statistics,
)

FILE = "pytorch.json"


class PyTorchTimes(msgspec.Struct, frozen=True):
    """Seconds of a call at the problem's own shape, medians with a cold L2 cache; `problem` is torch.compile's."""

    eager_seconds: float
    compiled_seconds: float | None
    gpu: str
    torch: str
    problem: str = ""


def time_pytorch(task: Task) -> PyTorchTimes:
    """Time the module of a task that was made of a problem's file. Raises TaskError, and DeviceError without a GPU."""
    import torch  # noqa: PLC0415 - an extra

    if not torch.cuda.is_available():
        raise DeviceError("PyTorch can't be timed here: there is no GPU.")
    problem = read_module_problem(task.folder)
    names = run_problem(task.folder / SOURCE_FILE)
    model = without_running_statistics(made_model(names)).to("cuda")
    function = module_function(model, problem.arguments, problem.state, problem.scalars)
    drawn = task.draw_inputs(task.search_shapes[0], seed=0)
    tensors = [torch.from_numpy(drawn[tensor.name]).to("cuda") for tensor in task.inputs]
    with torch.no_grad(), importable(names):
        eager = _median_seconds(functools.partial(function, *tensors))
        compiled, said = None, ""
        try:
            fast = torch.compile(function, dynamic=False)
            compiled = _median_seconds(functools.partial(fast, *tensors))
        except Exception as error:  # noqa: BLE001 - whatever its compiler makes of a module costs one column
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return PyTorchTimes(eager, compiled, torch.cuda.get_device_name(), str(torch.__version__), said)


def write_times(run: Path, times: PyTorchTimes) -> None:
    """Keep the times beside a run. Raises TaskError."""
    try:
        (run / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(times), indent=1) + b"\n")
    except OSError as error:
        raise TaskError(f"{run / FILE} can't be written: {error.strerror or error}.") from error


def read_times(run: Path) -> PyTorchTimes | None:
    """The times beside a run; None where nobody took them. Raises TaskError."""
    try:
        return msgspec.json.decode((run / FILE).read_bytes(), type=PyTorchTimes)
    except FileNotFoundError:
        return None
    except (OSError, *UNDECODABLE) as error:
        raise TaskError(f"{run / FILE} can't be read: {error}.") from error


def _median_seconds(run: Callable[[], object]) -> float:
    from triton.testing import do_bench  # noqa: PLC0415 - looks for a GPU

    return float(do_bench(run, return_mode="median")) / 1e3
