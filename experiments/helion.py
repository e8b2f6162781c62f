"""Kernels of Helion, by its two autotuners, beside what a search finds for the same functions.

    pip install helion
    python -m mctskernel.experiments.helion CASE... --out FOLDER   # goes on where it stopped; without a CASE, the table

For each case, one after another in processes of their own: a search of at most `--seconds` and `--budget` evaluations,
which starts from a template and torch.compile's kernel; Helion with `autotune_effort="quick"`; and with its default
effort, each told to stop in time. It gives up what compiles for 10 s, not 60: a few configurations take minutes, and
others wait. Then the kernels and PyTorch's function are interleaved in one process on the same tensors,
with a cold L2 cache. Seconds are of the wall clock, and of a search include making the task. Configurations are those
that Helion timed, and the search's evaluations; of these, `as fast as Helion` says after how many its best was.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
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
from mctskernel.experiments.results import append_line, page, provenance_here, read_lines, table
from mctskernel.problems import operators
from mctskernel.problems.from_torch import create_task_from_torch
from mctskernel.problems.torch_task import drawn_tensors
from mctskernel.profiling.candidate import prepare
from mctskernel.profiling.gpu.cuda_driver import open_gpu
from mctskernel.profiling.pytorch.interleaved import bound_plan, interleaved, loaded, timed
from mctskernel.profiling.stages import Stages
from mctskernel.report.progress import moments
from mctskernel.report.view import load_view
from mctskernel.tree.blobs import get_kernel
from mctskernel.tree.journal import read_events


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


def full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads, queries, _ = q.size()
    dim = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    keys_of = k.transpose(1, 2)
    scale = math.log2(math.e) / math.sqrt(dim)
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


CASES: dict[str, tuple[Callable[..., Tensor], tuple[str, ...], tuple[str, ...]]] = {
    "softmax": (softmax, ("8192x4096",), ("float32",)),
    "layernorm": (layernorm, ("8192x4096", "4096", "4096"), ("bfloat16",)),
    "rmsnorm": (rmsnorm, ("8192x4096", "4096"), ("bfloat16",)),
    "cross_entropy": (cross_entropy, ("8192x32000", "8192"), ("bfloat16", "int64")),
    "sum": (row_sums, ("8192x8192",), ("float32",)),
    "matmul": (matmul, ("M=4096xK=4096", "K=4096xN=4096"), ("bfloat16",)),
    "attention": (full_attention, ("64x2048x128",) * 3, ("bfloat16",)),
}
"""Kernels of Helion with the names of functions of `operators`, and the shapes and types that both are called with."""

SEARCH, TIMES = "mctskernel", "times"
EFFORTS = {"Helion, quick": "quick", "Helion": "full"}
ARMS = (SEARCH, *EFFORTS)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an arm spent on a case, and the configuration that Helion found; or what all kernels take, in us."""

    case: str
    name: str
    seconds: float = 0.0
    configurations: int = 0
    found: str = ""
    cut_off: bool = False
    us: dict[str, float] = {}
    as_fast_after: int = 0
    gpu: str = ""
    problem: str = ""


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--seconds", default=20.0, show_default=True, help="Of a search, at most.")
@click.option("--budget", default=40, show_default=True, help="Evaluations of a search, at most.")
@click.option("--quick", default=120, show_default=True, help="Seconds of Helion's quick autotuner; 0: none.")
@click.option("--full", default=600, show_default=True, help="Of its default one.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(*, cases: tuple[str, ...], seconds: float, budget: int, out: Path, **ends: int) -> None:
    """Compare on this machine's GPU; OUT/steps.jsonl keeps each step. Each call takes the times again."""
    lines, limits = out / "steps.jsonl", f"--seconds {seconds} --budget {budget}"
    steps = {(each.case, each.name): each for each in read_lines(lines, msgspec.json.Decoder(Step))}
    work: dict[str, tuple[Any, ...]] = {SEARCH: (searched, limits)}
    work |= {name: (tuned, name, ends[effort]) for name, effort in EFFORTS.items()}
    work[TIMES] = (compared, steps)
    for case, (name, (function, *arguments)) in product(cases, work.items()):
        if (name in ARMS and (case, name) in steps) or ends.get(EFFORTS.get(name, "")) == 0:
            continue
        began = time.monotonic()
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                step = process.submit(function, case, out / case, *arguments).result()
        except Exception as error:  # noqa: BLE001 - whatever is raised costs one cell of the table
            step = Step(case, name, time.monotonic() - began, problem=f"{type(error).__name__}: {error}")
        steps[case, name] = step
        append_line(lines, step)
    click.echo(document(steps))


def searched(case: str, folder: Path, limits: str) -> Step:
    """Make a task and search, in `folder`."""
    (kernel, shapes, dtypes), began = CASES[case], time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    create_task_from_torch(folder / "task", f"{operators.__name__}:{kernel.__name__}", shapes, dtypes)
    (folder / "task" / "start_templates.cu").replace(folder / "task" / "kernel.cu")
    options = f"--device gpu --no-baselines {limits} --out {folder / 'run'}".split()
    command = [sys.executable, "-m", "mctskernel", "search", str(folder / "task"), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Step(case, SEARCH, time.monotonic() - began, load_view(folder / "run").tree.evaluations)


def tuned(case: str, folder: Path, name: str, limit: int) -> Step:
    """Let Helion tune, and compare its result with PyTorch's. Raises what Helion does, and AssertionError."""
    kernel, task, found = CASES[case][0], load_task(folder / "task"), list[metrics.AutotuneMetrics]()
    given = tuple(drawn_tensors(task.inputs, task.search_shapes[0], "cuda").values())
    metrics.register_post_autotune_hook(found.append)
    limits = {"autotune_budget_seconds": limit, "autotune_compile_timeout": 10}
    made = helion.kernel(kernel, autotune_effort=EFFORTS[name], autotune_random_seed=0, **limits)
    began = time.monotonic()
    best = made.autotune(given).to_json()
    seconds = time.monotonic() - began
    expected = getattr(operators, kernel.__name__)(*given)
    torch.testing.assert_close(made(*given).float(), expected.float(), rtol=2e-2, atol=2e-2)
    return Step(case, name, seconds, found[0].num_configs_tested, best, cut_off=seconds >= limit)


def compared(case: str, folder: Path, steps: Mapping[tuple[str, str], Step]) -> Step:
    """Time PyTorch and all that was found, interleaved in this process."""
    kernel, task, view, gpu = (
        CASES[case][0],
        load_task(folder / "task"),
        load_view(folder / "run"),
        open_gpu(),
    )
    (shape,), tensors = task.search_shapes, drawn_tensors(task.inputs, task.search_shapes[0], "cuda")
    best = prepare(task, get_kernel(view.folder.blobs, view.best.kernel), gpu.architecture, Stages())
    ours, _ = bound_plan(task, shape, best, loaded(best), tensors)
    made: dict[str, Any] = {"PyTorch": getattr(operators, kernel.__name__)}
    for name in EFFORTS:
        if found := steps.get((case, name), Step(case, name)).found:
            made[name] = helion.kernel(kernel, config=helion.Config.from_json(found))
    runs = {each: timed(partial(function, *tensors.values())) for each, function in made.items()}
    samples = interleaved({**runs, SEARCH: timed(ours)})
    us = {each: 1e6 * float(np.median(taken)) for each, taken in samples.items()}
    return Step(case, TIMES, us=us, as_fast_after=as_fast_after(folder, us), gpu=gpu.name)


def as_fast_after(folder: Path, us: Mapping[str, float]) -> int:
    """The evaluations after which the best of a case's search was as fast as Helion's; 0 where it never was."""
    found = list(moments(read_events(load_view(folder / "run").folder.journal)))
    wanted = us[SEARCH] * found[-1].best_speedup / min(us.get(name, math.inf) for name in EFFORTS)
    return next((each.evaluations for each in found if each.best_speedup >= wanted), 0)


def document(steps: Mapping[tuple[str, str], Step]) -> str:
    """The table, and what failed."""
    times, spent = ([f"{arm}{what}" for arm in ARMS] for what in (", us", ": configurations, s"))
    head = ["function", "PyTorch, us", *times, "Helion / mctskernel", "as fast as Helion", *spent]
    rows = []
    for case in [each for each in CASES if (each, TIMES) in steps]:
        us = [steps[case, TIMES].us.get(arm, math.nan) for arm in ("PyTorch", *ARMS)]
        rows.append(
            [
                case,
                *("" if math.isnan(each) else f"{each:.1f}" for each in us),
                f"{np.nanmin(us[2:]) / us[1]:.3f}",
                f"after {after}" if (after := steps[case, TIMES].as_fast_after) else "never",
            ]
        )
        for step in [steps.get((case, arm)) for arm in ARMS]:
            rows[-1].append(f"{step.configurations}, {step.seconds:.0f}{'*' * step.cut_off}" if step else "")
    gpus = ", ".join(sorted({each.gpu for each in steps.values()} - {""}))
    about = f"{gpus}; Helion {version('helion')}; `{provenance_here().command}`"
    problems = [f"- {each.case}, {each.name}: {each.problem}" for each in steps.values() if each.problem]
    return page("Helion and the search", about, table(head, rows), "* its time was over", "\n".join(problems))


if __name__ == "__main__":
    from mctskernel.experiments.helion import main as command  # whose functions other processes can import

    command()
