"""Searches that begin at what torch.compile generates: ten functions, made tasks, timed and searched.

    python -m mctskernel.experiments.torch_starts --out FOLDER [--tasks softmax,cumsum] [--budget 30] [--seconds 20]

Needs a GPU and the extra `gpu`. FOLDER/tasks holds the tasks, FOLDER/runs the searches, FOLDER/generated what
torch.compile wrote, FOLDER/torch_starts.json and .md the table. What is there already is not made again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.suites.searches import Plan, run_search
from mctskernel.experiments.summarise_runs import summarise
from mctskernel.new_task_from_torch import create_task_from_torch
from mctskernel.profiling.gpu.timing import median_interval
from mctskernel.report.view import load_view
from mctskernel.run import Budget, RunError
from mctskernel.tree.journal import JournalError

FUNCTIONS = "mctskernel.experiments.subjects.torch_functions"
SAMPLES = 60
FLUSHED_BYTES = 1 << 28
"""Written before each run that is timed, so that nothing of the last one is left in the L2 cache."""


@dataclass(frozen=True)
class Case:
    """Tensors of a function."""

    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]


CASES: Mapping[str, Case] = {
    "softmax": Case(("8192x4096",), ("fp32",)),
    "cross_entropy": Case(("8192x32000", "8192"), ("bf16", "int64")),
    "cumsum": Case(("8192x4096",), ("fp32",)),
    "rmsnorm": Case(("8192x4096", "4096"), ("bf16",)),
    "layernorm": Case(("8192x4096", "4096", "4096"), ("bf16",)),
    "add_rmsnorm": Case(("8192x4096", "8192x4096", "4096"), ("bf16",)),
    "bias_gelu": Case(("8192x16384", "16384"), ("bf16",)),
    "rope": Case(("4096x32x128", "4096x64", "4096x64"), ("bf16",)),
    "masked_softmax": Case(("8192x4096",), ("fp32",)),
    "swiglu": Case(("8192x8192", "8192x8192"), ("bf16",)),
}


class Row(msgspec.Struct, frozen=True):
    """A function; times in seconds. `root_seconds` is of torch.compile's code as a candidate."""

    task: str
    compiled_seconds: float | None = None
    low: float = 0.0
    high: float = 0.0
    root_seconds: float | None = None
    best_seconds: float | None = None
    evaluations: int = 0
    path: tuple[str, ...] = ()
    problem: str = ""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--tasks", default=",".join(CASES), show_default=True, help="With commas.")
@click.option(
    "--budget", type=click.IntRange(min=1), default=30, show_default=True, help="Evaluations a search."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=20.0, show_default=True, help="And its seconds."
)
@click.option("--make", is_flag=True, help="Only make the tasks and time torch.compile, in this process.")
def main(*, out: Path, tasks: str, budget: int, seconds: float, make: bool) -> None:
    """Make the tasks, time torch.compile, search, and print the table."""
    names = tasks.split(",")
    out.mkdir(parents=True, exist_ok=True)
    if make:
        for name in names:
            make_task(name, out)
        return
    missing = [name for name in names if not _made(out, name).exists()]
    if missing:  # in a process of its own, so that PyTorch shares no GPU with a search
        command = [sys.executable, "-m", "mctskernel.experiments.torch_starts", "--make"]
        subprocess.run([*command, "--out", str(out), "--tasks", ",".join(missing)], check=False)
    plan = Plan("gpu", "H100", None, Budget(budget, seconds), 0, out / "runs")
    rows = [search(name, out, plan) for name in names if _made(out, name).exists()]
    write_result(out / "torch_starts.json", rows)
    text = table(rows)
    (out / "torch_starts.md").write_text(text)
    click.echo(text)


def make_task(name: str, out: Path) -> None:
    """Make the task of a function, time what torch.compile makes of it, and write both down."""
    case = CASES[name]
    try:
        made = create_task_from_torch(
            out / "tasks" / name, f"{FUNCTIONS}:{name}", case.shapes, case.dtypes, Language.TRITON
        )
    except TaskError as error:
        row = Row(name, problem=str(error))
    else:
        row = Row(name, problem=made.problem)
        for label, text in made.generated.items():
            (out / "generated").mkdir(exist_ok=True)
            (out / "generated" / f"{name}_{label}.txt").write_text(text)
        if made.run is not None:
            samples = time_compiled(made.run)
            low, high = median_interval(samples)
            row = msgspec.structs.replace(row, compiled_seconds=float(np.median(samples)), low=low, high=high)
    _made(out, name).write_bytes(msgspec.json.encode(row))
    click.echo(f"{name}: {row.problem or 'made'}, torch.compile {_microseconds(row.compiled_seconds)} us")


def time_compiled(run: Callable[[], object]) -> tuple[float, ...]:
    """Seconds of single runs by the GPU's clock, the L2 cache flushed before each, as candidates are timed."""
    import torch  # noqa: PLC0415 - an extra

    flushed = torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    marks: list[Any] = []
    for _ in range(SAMPLES + 5):
        before, after = _event(), _event()
        flushed.zero_()
        flushed.zero_()  # long enough for the launch to be queued meanwhile
        before.record()
        run()
        after.record()
        marks.append((before, after))
    torch.cuda.synchronize()
    return tuple(before.elapsed_time(after) * 1e-3 for before, after in marks[5:])


def _event() -> Any:
    import torch  # noqa: PLC0415 - an extra

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def search(name: str, out: Path, plan: Plan) -> Row:
    """Search a task that was made. What goes wrong is the row's problem."""
    row = msgspec.json.decode(_made(out, name).read_bytes(), type=Row)
    if row.problem:
        return row
    folder = str(out / "tasks" / name)
    try:
        if problem := run_search(folder, Language.TRITON, plan):
            return msgspec.structs.replace(row, problem=problem)
        found = summarise(load_view(plan.folder(folder, Language.TRITON)))
    except (RunError, JournalError) as error:
        return msgspec.structs.replace(row, problem=str(error))
    return msgspec.structs.replace(
        row,
        root_seconds=found.start_seconds,
        best_seconds=found.best_seconds,
        evaluations=found.evaluations,
        path=tuple(found.path),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| function | torch.compile, us | root, us | root / torch.compile | best, us | best / torch.compile | "
        "evaluations | what made it faster |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told = row.problem or "; ".join(row.path) or "nothing"
        lines.append(
            f"| {row.task} | {_microseconds(row.compiled_seconds)} | {_microseconds(row.root_seconds)} | "
            f"{_ratio(row.root_seconds, row.compiled_seconds)} | {_microseconds(row.best_seconds)} | "
            f"{_ratio(row.best_seconds, row.compiled_seconds)} | {row.evaluations} | {told} |"
        )
    return "\n".join(lines) + "\n"


def _made(out: Path, name: str) -> Path:
    return out / f"made_{name}.json"


def _microseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _ratio(seconds: float | None, of: float | None) -> str:
    return "-" if seconds is None or not of else f"{seconds / of:.3f}"


if __name__ == "__main__":
    main()
