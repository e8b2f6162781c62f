"""The roofline of a run: what its kernels moved and computed in their time, under what the GPU can do at most.

Nothing of the task folder is run: only `task.toml` is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mctskernel.core.documents import DocumentError, parse_toml
from mctskernel.core.expression import ExpressionError, evaluate
from mctskernel.profiling.architecture import ArchitectureError, load_architecture
from mctskernel.profiling.ceilings import Ceilings, architecture_ceilings
from mctskernel.report.view import View


class RooflinePoint(msgspec.Struct, frozen=True):
    """A kernel: the bytes that it moved to and from DRAM, and the seconds of one run at the first search shape."""

    node: int
    dram_bytes: float
    seconds: float


class Roofline(msgspec.Struct, frozen=True):
    """The points, and the ceilings of the GPU as its description has them.

    `flops` is the arithmetic of the plain algorithm at the first search shape, None where the task doesn't say:
    intensity is then unknown, and time can be compared with traffic alone.
    """

    gpu: str
    flops: float | None
    ceilings: Ceilings
    points: tuple[RooflinePoint, ...]


def roofline(view: View, traffic: Mapping[int, tuple[float, float]]) -> Roofline | None:
    """The roofline of a run, from the DRAM bytes and the seconds of its nodes.

    None without counters, or for a GPU that isn't described.
    """
    try:
        gpu = load_architecture(view.manifest.configuration.architecture)
    except ArchitectureError:
        return None
    if not traffic:
        return None
    points = (RooflinePoint(node, moved, seconds) for node, (moved, seconds) in sorted(traffic.items()))
    return Roofline(gpu.name, _flops(view), architecture_ceilings(gpu), tuple(points))


def _flops(view: View) -> float | None:
    try:
        document = parse_toml((view.folder.task / "task.toml").read_text("utf-8"))
        shape = document["shapes"]["search"][0]
        names: dict[str, Any] = {**document.get("scalars", {}), **shape}
        return float(evaluate(document["flops"], names))
    except (OSError, UnicodeDecodeError, DocumentError, ExpressionError, LookupError, TypeError, ValueError):
        return None
