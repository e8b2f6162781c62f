"""The roofline of a run: DRAM traffic and arithmetic of its kernels against the ceilings of the GPU.

No code of the task folder runs: only `task.toml` is read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mctskernel.core.documents import read_toml
from mctskernel.core.expression import ExpressionError, evaluate
from mctskernel.profiling.architecture import (
    Architecture,
    ArchitectureError,
    known_architectures,
    load_architecture,
)
from mctskernel.profiling.ceilings import Ceilings, architecture_ceilings
from mctskernel.profiling.counters import DRAM_BYTES
from mctskernel.report.view import View


class RooflinePoint(msgspec.Struct, frozen=True):
    """A kernel: its DRAM traffic in bytes, and the seconds of one run at the first search shape."""

    node: int
    dram_bytes: float
    seconds: float


class Roofline(msgspec.Struct, frozen=True):
    """The points, and the ceilings from the description of the GPU.

    `flops` are the operations of the plain algorithm at the first search shape; None where the task doesn't give them,
    and then the arithmetic intensity is unknown.
    """

    gpu: str
    flops: float | None
    ceilings: Ceilings
    points: tuple[RooflinePoint, ...]


def roofline(view: View) -> Roofline | None:
    """The roofline of a run; None without counters or a description of the GPU."""
    points = tuple(
        RooflinePoint(node.id, moved, node.evaluation.timings[0].seconds)
        for node in view.tree.nodes
        if node.evaluation and node.evaluation.timings and (moved := node.evaluation.counters.get(DRAM_BYTES))
    )
    gpu = described_gpu(view)
    return Roofline(gpu.name, _flops(view), architecture_ceilings(gpu), points) if gpu and points else None


def described_gpu(view: View) -> Architecture | None:
    """The description of the GPU that a run's kernels were timed on or modelled for; None without one."""
    chosen = (view.manifest.configuration.architecture, *known_architectures())
    for described in chosen:
        try:
            gpu = load_architecture(described)
        except ArchitectureError:
            continue
        if gpu.name == view.manifest.fingerprint.get("gpu"):
            return gpu
    return None


def _flops(view: View) -> float | None:
    try:
        document = read_toml(view.folder.task / "task.toml")
        shape = document["shapes"]["search"][0]
        names: dict[str, Any] = {**document.get("scalars", {}), **shape}
        return float(evaluate(document["flops"], names))
    except (ExpressionError, LookupError, TypeError, ValueError):
        return None
