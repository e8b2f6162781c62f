"""Modules that torch.compile generated on an H100 (PyTorch 2.11), for sizes by which dimensions are recognised.

Comments and the parts that nothing is read of are left out; `launches.json` says
how PyTorch's autotuner launched their kernels at the sizes asked for.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from mctskernel.problems.inductor.candidate import Config, candidate_source
from mctskernel.problems.inductor.generated import read_generated
from mctskernel.problems.inductor.sizes import Names, distinct_sizes

FOLDER = Path(__file__).parent / "generated"
LAUNCHES: dict[str, dict[str, Any]] = json.loads((FOLDER / "launches.json").read_text())
OUTPUTS = {"add_rmsnorm": ("out0", "out1")}
COLUMNS = {"cross_entropy": 32000, "bias_gelu": 16384}


def text(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def config(name: str) -> dict[str, Config]:
    launch = LAUNCHES[name]
    return {launch["kernel"]: Config(launch["blocks"], launch["num_warps"], launch["num_stages"])}


def sizes(name: str) -> dict[str, int]:
    return distinct_sizes({"rows": 8192, "cols": COLUMNS.get(name, 4096)}, {})


def names(name: str) -> Names:
    return Names(sizes(name), {})


def candidate(name: str, source: str | None = None) -> str:
    from torch._inductor.runtime import triton_helpers  # noqa: PLC0415 - an extra

    return candidate_source(
        read_generated(source or text(name)),
        config(name),
        names(name),
        inputs=LAUNCHES[name]["inputs"],
        outputs=OUTPUTS.get(name, ("out",)),
        helpers=inspect.getsource(triton_helpers),
    )
