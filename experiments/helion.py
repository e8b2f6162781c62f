"""Kernels of Helion, by its two autotuners, beside what a search finds for the same functions.

    pip install helion
    python -m mctskernel.experiments.helion CASE --out FOLDER      # one call for each case; prints all so far

On one GPU, one after another: a search of `--seconds`, which starts from templates and torch.compile's kernels; Helion
with `autotune_effort="quick"`; and with its default effort, both cut off after `--helion-seconds`. The kernels and
PyTorch's function are interleaved on the same tensors, with a cold L2 cache. Seconds are of the wall clock, and of the
search include making the task. Helion multiplies float32 as such, as PyTorch does.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import helion
import helion.language as hl
import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from helion.autotuner import metrics
from torch import Tensor

from mctskernel.core.task_file import load_task
from mctskernel.experiments.json_lines import append_line, read_lines
from mctskernel.experiments.results import page, provenance_here, table
from mctskernel.problems import operators
from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.problems.torch_reference import tensor_of
from mctskernel.profiling.candidate import prepare
from mctskernel.profiling.gpu.cuda_driver import open_gpu
from mctskernel.profiling.pytorch.interleaved import bound_plan, interleaved, loaded, timed
from mctskernel.profiling.stages import Stages
from mctskernel.report.view import load_view
from mctskernel.tree.blobs import get_kernel

LOG2_E = math.log2(math.e)


def softmax(x: Tensor) -> Tensor:
    """A kernel of Helion; so are the others with the name of a function of PyTorch."""
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = F.softmax(x[rows, :], dim=1)
    return out


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        wide = x[rows, :].to(torch.float32)
        centred = wide - (torch.sum(wide, dim=-1) / x.size(1))[:, None]
        scale = torch.rsqrt(torch.sum(centred * centred, dim=-1) / x.size(1) + 1e-5)
        out[rows, :] = (centred * scale[:, None] * weight[:] + bias[:]).to(out.dtype)
    return out


def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        wide = x[rows, :].to(torch.float32)
        scale = torch.rsqrt(torch.sum(wide * wide, dim=-1) / x.size(1) + 1e-5)
        out[rows, :] = (wide * scale[:, None] * weight[:]).to(out.dtype)
    return out


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    count, classes = logits.size()
    losses = torch.empty([count], dtype=torch.float32, device=logits.device)
    flat = logits.view(-1)
    for rows in hl.tile(count):
        wanted = hl.load(flat, [rows.index * classes + targets[rows]]).to(torch.float32)
        wide = logits[rows, :].to(torch.float32)
        largest = torch.amax(wide, dim=-1)
        total = torch.sum(torch.exp(wide - largest[:, None]), dim=-1)
        losses[rows] = largest + torch.log(total) - wanted
    return losses


def matmul(a: Tensor, b: Tensor) -> Tensor:
    m, k = a.size()
    n = b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, columns in hl.tile([m, n]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for terms in hl.tile(k):
            total = torch.addmm(total, a[rows, terms], b[terms, columns])
        out[rows, columns] = total.to(out.dtype)
    return out


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, queries, _ = q.size()
    dim = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    keys_of = k.transpose(1, 2)
    scale = LOG2_E / math.sqrt(dim)
    for head, rows in hl.tile([heads, queries]):
        largest = hl.full([head, rows], float("-inf"), dtype=torch.float32)
        total = torch.full_like(largest, 1.0)
        found = hl.zeros([head, rows, dim], dtype=torch.float32)
        asked = q[head, rows, :]
        for keys in hl.tile(k.size(1)):
            scores = torch.bmm(asked, keys_of[head, :, keys])
            higher = torch.maximum(largest, torch.amax(scores, -1) * scale)
            weights = torch.exp2(scores * scale - higher[:, :, None])
            fading = torch.exp2(largest - higher)
            total = total * fading + torch.sum(weights, -1)
            found = torch.baddbmm(found * fading[:, :, None], weights.to(v.dtype), v[head, keys, :])
            largest = higher
        out[head, rows, :] = (found / total[:, :, None]).to(out.dtype)
    return out


def row_sums(x: Tensor) -> Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for rows in hl.tile(x.size(0)):
        out[rows] = x[rows, :].sum(-1)
    return out


CASES: dict[str, tuple[Callable[..., Tensor], str, tuple[str, ...], tuple[str, ...]]] = {
    "softmax": (softmax, "softmax", ("8192x4096",), ("float32",)),
    "layernorm": (layernorm, "layernorm", ("8192x4096", "4096", "4096"), ("bfloat16",)),
    "rmsnorm": (rmsnorm, "rmsnorm", ("8192x4096", "4096"), ("bfloat16",)),
    "cross_entropy": (cross_entropy, "cross_entropy", ("8192x32000", "8192"), ("bfloat16", "int64")),
    "sum": (row_sums, "row_sums", ("8192x8192",), ("float32",)),
    "matmul": (matmul, "matmul", ("2048x2048",) * 2, ("float32",)),
    "matmul_bf16": (matmul, "matmul", ("4096x4096",) * 2, ("bfloat16",)),
    "attention": (attention, "full_attention", ("64x2048x128",) * 3, ("bfloat16",)),
}
"""Kernels of Helion, functions of `operators`, and shapes and types of what both are called with."""

ARMS = {"mctskernel": "", "Helion, quick": "quick", "Helion": "full"}


class Row(msgspec.Struct, frozen=True):
    """A case on a GPU: microseconds, and of each way the seconds and configurations that it spent, and what failed."""

    case: str
    gpu: str
    us: dict[str, float]
    seconds: dict[str, float]
    configurations: dict[str, int]
    problems: dict[str, str]


@click.command()
@click.argument("case", type=click.Choice(list(CASES)))
@click.option("--seconds", default=15.0, show_default=True, help="Of the search.")
@click.option(
    "--helion-seconds", default=60, show_default=True, help="Of each of Helion's autotuners, at most."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(*, case: str, seconds: float, helion_seconds: int, out: Path) -> None:
    """Compare on this machine's GPU; OUT/rows.jsonl keeps what is known after each way."""
    rows = out / "rows.jsonl"
    for row in compared(case, seconds, helion_seconds, out / case):
        append_line(rows, row)
    click.echo(
        document(list({each.case: each for each in read_lines(rows, msgspec.json.Decoder(Row))}.values()))
    )


def compared(name: str, seconds: float, helion_seconds: int, folder: Path) -> Iterator[Row]:
    """Search, let Helion tune, and time what they found: after each of them all that there is so far."""
    (kernel, function, shapes, dtypes), began = CASES[name], time.monotonic()
    create_task_from_torch(folder / "task", f"{operators.__name__}:{function}", shapes, dtypes)
    options = f"--device gpu --no-baselines --budget 10000 --seconds {seconds} --out {folder / 'run'}".split()
    command = [sys.executable, "-m", "mctskernel", "search", str(folder / "task"), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    view, task, gpu = load_view(folder / "run"), load_task(folder / "task"), open_gpu()
    spent, configurations = {"mctskernel": time.monotonic() - began}, {"mctskernel": view.tree.evaluations}
    drawn = task.draw_inputs(task.search_shapes[0], 0)
    tensors = {
        each.name: tensor_of(drawn[each.name], getattr(torch, each.dtype)).cuda() for each in task.inputs
    }
    given, operator, problems = tuple(tensors.values()), getattr(operators, function), dict[str, str]()
    candidate = prepare(task, get_kernel(view.folder.blobs, view.best.kernel), gpu.architecture, Stages())
    module = loaded(candidate)
    calls: dict[str, Any] = {"PyTorch": lambda: operator(*given)}
    calls["mctskernel"], _ = bound_plan(task, task.search_shapes[0], candidate, module, tensors)
    for arm in list(ARMS)[1:]:
        found: list[metrics.AutotuneMetrics] = []
        metrics.register_post_autotune_hook(found.append)
        began = time.monotonic()
        try:
            tuned = helion.kernel(
                kernel,
                static_shapes=True,
                dot_precision="ieee",
                autotune_effort=ARMS[arm],
                autotune_budget_seconds=helion_seconds,
                autotune_random_seed=0,
                autotune_progress_bar=False,
            )
            tuned.autotune(given)
            torch.testing.assert_close(tuned(*given).float(), operator(*given).float(), rtol=2e-2, atol=2e-2)
            calls[arm] = lambda tuned=tuned: tuned(*given)
        except Exception as error:  # noqa: BLE001 - whatever Helion raises costs one cell of the table
            problems[arm] = f"{type(error).__name__}: {error}".splitlines()[0]
        spent[arm] = time.monotonic() - began
        configurations[arm] = sum(each.num_configs_tested for each in found)
        metrics.remove_post_autotune_hook(found.append)
        samples = interleaved({each: timed(call) for each, call in calls.items()})
        us = {each: 1e6 * float(np.median(taken)) for each, taken in samples.items()}
        yield Row(name, gpu.name, us, dict(spent), dict(configurations), dict(problems))


def document(rows: list[Row]) -> str:
    head = ["function", "PyTorch, us"] + [
        f"{arm}, {each}" for arm in ARMS for each in ("us", "s", "configurations")
    ]
    cells = [
        [row.case, f"{row.us['PyTorch']:.1f}", *(text for arm in ARMS for text in _cells(row, arm))]
        for row in rows
    ]
    problems = "\n".join(f"- {row.case}, {arm}: {said}" for row in rows for arm, said in row.problems.items())
    about = f"{', '.join(sorted({row.gpu for row in rows}))}; helion {version('helion')}; `{provenance_here().command}`"
    return page("Helion's autotuners and the search", about, table(head, cells), problems)


def _cells(row: Row, arm: str) -> list[str]:
    if arm not in row.seconds:
        return ["", "", ""]
    return [f"{row.us.get(arm, math.nan):.1f}", f"{row.seconds[arm]:.0f}", str(row.configurations[arm])]


if __name__ == "__main__":
    main()
