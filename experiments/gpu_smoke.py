"""Judge every built-in task's starting kernel on the GPU and print a table.

python -m mctskernel.experiments.gpu_smoke [TASK ...]
"""

from __future__ import annotations

import sys

from mctskernel.core.device import DeviceLostError
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task_file import load_task
from mctskernel.profiling.cuda_driver import describe_gpu
from mctskernel.profiling.gpu_device import GpuDevice
from mctskernel.profiling.model_device import ModelDevice
from mctskernel.tasks import builtin_tasks


def main() -> None:
    """The tasks named on the command line, or all."""
    print(describe_gpu())
    titles = f"{'build':>6s} {'verify':>7s} {'time':>6s}"
    print(f"{'task':12s} {'outcome':14s} {'measured us':>12s} {'modelled us':>12s} {titles}")
    for name, folder in builtin_tasks().items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        task = load_task(folder)
        try:
            measured = GpuDevice(task).evaluate(task.starting_kernel)
        except DeviceLostError as error:
            print(f"{name:12s} lost the device: {error}")
            return
        modelled = ModelDevice(task).evaluate(task.starting_kernel)
        cost = [measured.stage_seconds.get(stage, 0.0) for stage in ("build", "verify", "time")]
        print(
            f"{name:12s} {measured.outcome:14s} {_microseconds(measured):>12s} {_microseconds(modelled):>12s} "
            f"{cost[0]:6.3f} {cost[1]:7.3f} {cost[2]:6.3f} {measured.message}{measured.quarantine}"
        )


def _microseconds(evaluation: Evaluation) -> str:
    return f"{evaluation.timings[0].seconds * 1e6:.1f}" if evaluation.timings else "-"


if __name__ == "__main__":
    main()
