"""How well the evaluator times: repeats of one kernel, and a known difference of two per cent.

    python -m mctskernel.experiments.timing_precision --out docs/results/timing_precision_h100.json

A kernel that spins for a given number of steps takes a time in proportion to them. One of them is judged again and
again, in fresh evaluations; then it and one of 2 % more steps are judged in turn, and the shorter median must be its.
With `--predictors` so many processes of a surrogate predict meanwhile, each a kernel that it hasn't seen.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import numpy as np

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.executor import Executor, ExecutorOptions
from mctskernel.core.kernel import Kernel
from mctskernel.executors import open_executor
from mctskernel.executors.surrogate import ModelSurrogate
from mctskernel.experiments.records.provenance import write_result

TASK = """\
name = "spin"

[[inputs]]
name = "x"
dtype = "float32"
shape = ["n"]

[[outputs]]
name = "out"
dtype = "float32"
shape = ["n"]

[shapes]
search = [{ n = 1048576 }]
verify = [{ n = 130 }]
"""

REFERENCE = "def reference(x):\n    return 2 * x\n"

KERNEL = """\
/*
[[launch]]
kernel = "spin"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n", 2500]
*/
__global__ void spin(const float* x, float* out, int n, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = x[i];
    #pragma unroll 1
    for (int step = 0; step < steps; ++step) sum = fmaf(sum, 0.5f, 1.0f);
    out[i] = sum == 12345.0f ? sum : 2.0f * x[i];
}
"""


def spinning(steps: int) -> Kernel:
    """A kernel whose time is in proportion to its steps."""
    return Kernel(KERNEL.replace('"n", 2500', f'"n", {steps}'))


@click.command()
@click.option("--repeats", default=20, show_default=True, help="Evaluations of one kernel.")
@click.option("--tries", default=100, show_default=True, help="Comparisons of two kernels.")
@click.option("--steps", default=2500, show_default=True, help="Steps of the shorter kernel.")
@click.option("--predictors", default=0, show_default=True, help="Processes that predict meanwhile.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the figures as JSON.")
def main(repeats: int, tries: int, steps: int, predictors: int, out: Path | None) -> None:
    """Print the spread of repeated medians, and how often a difference of 2 % is called right."""
    shorter, longer = spinning(steps), spinning(round(steps * 1.02))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("task.toml", TASK), ("reference.py", REFERENCE), ("kernel.cu", KERNEL)):
            (Path(folder) / name).write_text(text)
        predicted: list[bool] = []
        beside = predicting(DeviceSpec("model", Path(folder)), predictors, predicted) if predictors else None
        with (
            beside or nullcontext(),
            open_executor(DeviceSpec("gpu", Path(folder)), options=ExecutorOptions(gpus=("0",))) as executor,
        ):
            began = time.perf_counter()
            medians = [_seconds(each) for each in evaluated(executor, itertools.repeat(shorter, repeats))]
            pairs = itertools.chain.from_iterable(itertools.repeat((shorter, longer), tries))
            seconds = [_seconds(each) for each in evaluated(executor, pairs)]
            evaluating = time.perf_counter() - began
            machine = executor.fingerprint()
    ratios = np.asarray(seconds[1::2]) / np.asarray(seconds[::2])
    found = {
        "machine": machine,
        "median_us": 1e6 * float(np.median(medians)),
        "repeats": repeats,
        "spread": max(medians) / min(medians) - 1,
        "tries": tries,
        "called_right": int((ratios > 1).sum()),
        "ratio_low": float(ratios.min()),
        "ratio_median": float(np.median(ratios)),
        "ratio_high": float(ratios.max()),
        "seconds_an_evaluation": evaluating / (repeats + 2 * tries),
        "predictors": predictors,
        "predictions": len(predicted),
    }
    if out is not None:
        write_result(out, found)
    click.echo(
        f"{repeats} medians of one kernel of {found['median_us']:.1f} us lie within {found['spread']:.2%}."
    )
    if predictors:
        click.echo(f"{predictors} processes made {len(predicted)} predictions meanwhile.")
    click.echo(
        f"A difference of 2 % was called right {found['called_right']} times in {tries}; ratios "
        f"{found['ratio_low']:.4f} to {found['ratio_high']:.4f}, median {found['ratio_median']:.4f}."
    )


@contextmanager
def predicting(spec: DeviceSpec, workers: int, predicted: list[bool]) -> Iterator[None]:
    """Keep processes of a surrogate busy; `predicted` tells of each kernel whether there was a prediction."""
    ended = threading.Event()

    def predict() -> None:
        kernels = (Kernel(KERNEL.replace("0.5f", f"{0.5 + seen / 2**20}f")) for seen in itertools.count())
        with ModelSurrogate(spec, workers=workers) as surrogate:
            for ticket, kernel in zip(range(2 * workers), kernels, strict=False):
                surrogate.submit(ticket, kernel)
            while not ended.is_set():
                for ticket, prediction in surrogate.wait(1.0):
                    predicted.append(prediction is not None)
                    surrogate.submit(ticket, next(kernels))

    thread = threading.Thread(target=predict, name="predictors")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def evaluated(executor: Executor, kernels: Iterator[Kernel]) -> Iterator[Evaluation]:
    """Evaluate kernels one after another."""
    for kernel in kernels:
        executor.submit(0, kernel)
        ((_, evaluation),) = executor.wait()
        yield evaluation


def _seconds(evaluation: Evaluation) -> float:
    if not evaluation.ok:
        raise click.ClickException(f"The kernel was not timed: {evaluation.message}")
    return evaluation.timings[0].seconds


if __name__ == "__main__":
    main()
