"""Whether tolerances refuse honest kernels: every problem of a folder, computed in PyTorch by other orders of sums.

    python -m mctskernel.experiments.tolerances KernelBench --seeds 3

Each problem is read, and its cases drawn as a verification and a final validation draw them, at small shapes and at
the problem's own with few of an independent dimension. An honest kernel is the problem in its own precision: as
PyTorch computes it; with sums in 16 parts, each one term after another, as plain kernels add; and with products in TF32
where the problem allows that. The table has the largest error as a share of what is allowed (above 1 is refused), and
how much is allowed: the least uniform relative error of all elements that is found. Needs no GPU.
"""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mctskernel.core.dtypes import is_floating, numpy_dtype
from mctskernel.core.kernel import Language
from mctskernel.core.task import Array, Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import UserError
from mctskernel.experiments.bench.rows import find_problems, name_of
from mctskernel.experiments.results import table_lines
from mctskernel.problems.registry import read_problem, write_problem
from mctskernel.profiling.comparison import in_float64
from mctskernel.profiling.input_values import Values
from mctskernel.profiling.torch_rounding import TF32Products
from mctskernel.profiling.verify import (
    HELD_OUT_SEED,
    Case,
    check_outputs,
    draw_cases,
    draw_verification,
    expect,
    widened_task,
)

PARTS = 16
MOST_BYTES = 1 << 23
"""Of the tensors of a case at the problem's own size."""

ERRORS = tuple(10.0 ** (power / 4) for power in range(-28, 1))
"""Relative errors that are planted, in order."""

_ATEN, _PRIMS = torch.ops.aten, torch.ops.prims

_WHOLE = {_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.cumsum}


class SumsInTurn(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's has no types
    """Within this mode means, variances and sums of float32 are added one term after another, in parts."""

    def __torch_dispatch__(
        self, func: OpOverload[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute an operator, or call it."""
        kwargs = kwargs or {}
        packet = func.overloadpacket
        x: Any = args[0] if args else None
        if packet in {_ATEN.sum, _ATEN.mean, _PRIMS.var} and x.dtype == torch.float32:
            dims = args[1] if len(args) > 1 and args[1] is not None else range(x.dim())
            dims = [each % x.dim() for each in ([dims] if isinstance(dims, int) else dims)]
            count = math.prod(x.shape[each] for each in dims)
            keep = args[2] if packet is not _PRIMS.var and len(args) > 2 else kwargs.get("keepdim", False)
            if packet is _PRIMS.var:
                x = (x - in_turn(x, dims, keep=True) / count).square()
                count -= int(args[2] if len(args) > 2 else kwargs.get("correction", 1))
            found = in_turn(x, dims, keep=keep)
            return found if packet is _ATEN.sum else found / count
        if (parts := decomposition_table.get(func)) is not None and packet not in _WHOLE:
            with self:
                result = parts(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def in_turn(x: Any, dims: Sequence[int], *, keep: bool) -> Any:
    if not dims:
        return x.clone()
    kept = [each for each in range(x.dim()) if each not in dims]
    flat = x.permute(*kept, *dims).reshape(*(x.shape[each] for each in kept), -1)
    parts = PARTS if flat.shape[-1] > PARTS**2 else 1
    padded: Any = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % parts))
    flat = padded.unflatten(-1, (-1, parts))
    total = flat.new_zeros(flat[..., 0, :].shape)
    for turn in range(flat.shape[-2]):
        total = total + flat[..., turn, :]
    found = total[..., 0]
    for part in range(1, parts):
        found = found + total[..., part]
    return found.reshape([1 if each in dims else x.shape[each] for each in range(x.dim())]) if keep else found


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
def main(*, paths: tuple[Path, ...], seeds: int) -> None:
    """Check the tolerances of problems, and print a table of them."""
    rows, refused = [], 0
    for problem in find_problems(paths):
        worst, said = 0.0, ""
        least: list[float] = []
        try:
            for case, name, error, message in checked(problem, seeds, least):
                refused += bool(message)
                worst, said = max(
                    (worst, said), (error, f"{name}, {case.label}: {message}" if message else said)
                )
        except (UserError, RuntimeError) as failure:
            said = f"{type(failure).__name__}: {failure}".splitlines()[0]
        found = f"{np.median(least):.1e}" if least else ""
        rows.append([name_of(problem), f"{worst:.2f}", found, said])
        click.echo(" | ".join(rows[-1]))
    head = ["problem", "largest error / allowed", "error that is found", "refused"]
    click.echo(
        "\n".join(
            ["", *table_lines(head, rows), "", f"{len(rows)} problems, {refused} honest results refused."]
        )
    )


def checked(problem: Path, seeds: int, least: list[float]) -> Iterator[tuple[Case, str, float, str]]:
    """Each honest kernel's largest error at each case, and why it is refused; the planted errors go to `least`."""
    with tempfile.TemporaryDirectory() as folder:
        write_problem(read_problem(problem, Language.CUDA), Path(folder) / "task")
        task = load_task(Path(folder) / "task", Language.CUDA)
        for case in cases_of(task, seeds):
            for name, outputs in honest(task, case):
                check = check_outputs(case, outputs)
                yield case, name, check.error, check.message
            if case.values is Values.DRAWN and case.shape in task.verify_shapes:
                least.append(least_found(case))


def cases_of(task: Task, seeds: int) -> Iterator[Case]:
    """The cases of a verification, of held-out shapes, and of the search shape with few of what is independent."""
    shape = dict(task.search_shapes[0])
    while task.independent and task.compulsory_bytes(shape) > MOST_BYTES and shape[task.independent] > 1:
        shape[task.independent] = max(1, shape[task.independent] // 2)
    for seed in range(seeds):
        yield from draw_verification(task, seed)
        if task.held_out_shapes:
            yield from draw_cases(task, task.held_out_shapes, HELD_OUT_SEED + seed, turns=8)
        if seed < 2 and task.compulsory_bytes(shape) <= MOST_BYTES:
            small = min(task.verify_shapes, key=task.compulsory_bytes, default=shape)
            drawn = widened_task(task, small, seed) if seed else task
            yield expect(task, shape, seed, drawn.draw_inputs(shape, seed), part_of=task.search_shapes[0])


def honest(task: Task, case: Case) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """What honest kernels write, by what they are called."""
    modes: dict[str, tuple[AbstractContextManager[Any], bool]] = {
        "PyTorch": (nullcontext(), False),
        "sums in turn": (SumsInTurn(), False),  # type: ignore[no-untyped-call] # as above
    }
    if task.numerics.tf32:
        modes["TF32"] = TF32Products(task.numerics.tf32, len(modes)), True
    for name, (mode, wide) in modes.items():
        with mode, np.errstate(all="ignore"):
            found = task.expected(in_float64(case.inputs) if wide else case.inputs, case.shape)
        dtypes = {each.name: numpy_dtype(each.dtype) for each in task.outputs}
        yield name, {each: np.asarray(array).astype(dtypes[each]) for each, array in found.items()}


def least_found(case: Case) -> float:
    """The least planted error, relative to each element, that isn't allowed; infinity where none is found."""

    def is_allowed(error: float) -> bool:
        with np.errstate(all="ignore"):
            wrong = {
                name: (truth * (1 + error)).astype(case.plain[name].dtype)
                if is_floating(truth.dtype)
                else truth
                for name, truth in case.expected.items()
            }
        return check_outputs(case, wrong).passed

    place = bisect_left(ERRORS, 1, key=lambda error: int(not is_allowed(error)))
    return ERRORS[place] if place < len(ERRORS) else math.inf


if __name__ == "__main__":
    main()
