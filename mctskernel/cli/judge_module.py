"""`mctskernel judge-module REFERENCE CANDIDATE...`: is a PyTorch module right, and faster than the one it replaces?"""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import rich_click as click

from mctskernel.cli.errors import REFUSED
from mctskernel.cli.plain_console import deliver, echo
from mctskernel.core.evaluation import Evaluation
from mctskernel.modules import judge_modules
from mctskernel.profiling.pytorch.referee import ModuleVerdict, Terms
from mctskernel.profiling.pytorch.speedup import Speedup

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

MOST_RUNS = 1000
"""Rounds that a module which is short against the way to its process is timed for, if a minute is enough for them."""


@click.command()
@click.argument("reference", type=_FILE)
@click.argument("candidates", type=_FILE, nargs=-1, required=True, metavar="CANDIDATE...")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Repeats a verdict's inputs and weights. [default: drawn]"
)
@click.option(
    "--runs",
    type=click.IntRange(min=5),
    help="Timed rounds. [default: 30, and more for a minute where the module can't be told from the way to it]",
)
@click.option("--own-kernels", is_flag=True, help="Refuse a module that defines no kernel of its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a candidate.")
def judge_module(
    reference: Path,
    candidates: tuple[Path, ...],
    *,
    device: str,
    seed: int | None,
    runs: int | None,
    own_kernels: bool,
    as_json: bool,
) -> None:
    """Judge whole PyTorch modules, each in a process of its own that has no say in its verdict.

    REFERENCE has a class Model, get_inputs() and get_init_inputs(), as in KernelBench; each CANDIDATE has a class
    ModelNew, which may define Triton kernels or compile extensions. Exits with 7 when a candidate is refused.
    """
    chosen = secrets.randbits(48) if seed is None else seed
    terms = Terms(device=device, seed=chosen, most_runs=MOST_RUNS, own_kernels=own_kernels)
    if runs is not None:
        terms = replace(terms, runs=runs, most_runs=runs)
    refused = False
    for path, verdict in judge_modules(reference, candidates, terms):
        refused |= not verdict.evaluation.ok
        if as_json:
            deliver(_as_json(path, verdict, chosen) + "\n")
        else:
            echo(_as_text(path, verdict, chosen))
    sys.exit(REFUSED if refused else 0)


class _Judged(msgspec.Struct, frozen=True):
    candidate: str
    seed: int
    evaluation: Evaluation
    speedup: Speedup | None


def _as_json(path: Path, verdict: ModuleVerdict, seed: int) -> str:
    return msgspec.json.encode(_Judged(str(path), seed, verdict.evaluation, verdict.speedup)).decode()


def _as_text(path: Path, verdict: ModuleVerdict, seed: int) -> str:
    evaluation = verdict.evaluation
    noticed = f" (noticed by: {evaluation.guard})" if evaluation.guard else ""
    lines = [f"{path}: {evaluation.outcome}{noticed}"]
    lines += [f"  {evaluation.message}"] if evaluation.message else []
    lines += [f"  {line}" for line in evaluation.log.splitlines()[-8:]]
    if verdict.speedup is not None:
        lines += [f"  {line}" for line in _times(verdict.speedup)]
        lines += [f"  right in {len(evaluation.checks)} calls, each on fresh inputs (seed {seed})"]
    lines += [f"  remark: {flag}" for flag in evaluation.flags]
    return "\n".join(lines)


def _times(found: Speedup) -> list[str]:
    if found.doubt:
        return [found.doubt]
    timing = found.timing
    return [
        f"{found.ratio:.2f} times as fast as the reference [{found.low:.2f} to {found.high:.2f}]; "
        f"at least {found.at_least:.2f} times, whatever it did to the way there and back",
        f"{_microseconds(timing.seconds)} against {_microseconds(timing.baseline_seconds or 0.0)}, "
        f"without the round trip of {_microseconds(found.round_trip_seconds)}",
    ]


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
