"""What PyTorch takes for a run's task, timed beside the run's start and its answer: RUN/pytorch.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mctskernel.core.documents import indented_json
from mctskernel.run import read_json, write_text

FILE = "pytorch.json"

EAGER, COMPILED, AUTOTUNED = "PyTorch eager", "torch.compile", "torch.compile max-autotune"


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """Median seconds of a call at one shape with a cold L2 cache, all interleaved in one process.

    `seconds` are PyTorch's, by `EAGER`, `COMPILED` and `AUTOTUNED`; `best_seconds` is of the answer, which was `node`.
    `problem` says why one is missing. `floor_seconds` is the roofline: what the compulsory bytes take at the rate of a
    copy, or the arithmetic at the peak of the precision that PyTorch uses, whichever is longer. `spent_seconds` is what
    it took to find all this out, of which the GPU was held for `gpu_seconds`.
    """

    node: int
    shape: str
    start_seconds: float
    best_seconds: float
    seconds: dict[str, float]
    gpu: str
    torch: str
    problem: str = ""
    floor_seconds: float = 0.0
    spent_seconds: float = 0.0
    gpu_seconds: float = 0.0

    @property
    def speedups(self) -> dict[str, float]:
        """How many times faster than PyTorch the answer is, by baseline."""
        return {name: seconds / self.best_seconds for name, seconds in self.seconds.items()}

    @property
    def sentence(self) -> str:
        """The speed-ups in words: `2.10x over PyTorch eager, 1.20x over torch.compile`."""
        return ", ".join(f"{speedup:.2f}x over {name}" for name, speedup in self.speedups.items())


def write_baselines(run: Path, found: Baselines) -> None:
    """Keep them in a run's folder. Raises RunError."""
    write_text(run / FILE, indented_json(found).decode())


def read_baselines(run: Path) -> Baselines | None:
    """Those of a run's folder; None where there are none. Raises RunError."""
    return read_json(run / FILE, Baselines)
