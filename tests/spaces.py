"""A small search-space cache that every test can read in one look: a bowl over four parameters with holes."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.profiling.spaces import write_space

PARAMETERS = (
    Parameter("block", (32, 64, 128, 256)),
    Parameter("tile", (1, 2, 4)),
    Parameter("layout", ("row", "column")),
    Parameter("padded", (True, False)),
)

BEST = (128, 2, "row", False)


def entry(block: int, tile: int, layout: str, padded: bool) -> Entry:
    """The time grows with the distance from BEST; large blocks with large tiles don't build."""
    stages = {"compile": 2.0, "benchmark": float(tile)}
    values = (block, tile, layout, padded)
    if block * tile >= 512:
        return Entry(
            values, Outcome.BUILD_ERROR, word="CompilationFailedConfig", stage_seconds={"compile": 1.0}
        )
    milliseconds = 1.0 + abs(block - 128) / 32 + abs(tile - 2) + (layout != "row") + 0.5 * padded
    return Entry(values, Outcome.OK, milliseconds * 1e-3, stage_seconds=stages)


def bowl(name: str = "bowl") -> SearchSpace:
    """46 configurations: two of the 48 are excluded by a constraint."""
    values = product(*(parameter.values for parameter in PARAMETERS))
    entries = tuple(entry(*each) for each in values if not (each[0] == 32 and each[1] == 4 and each[3]))  # type: ignore[arg-type]
    return SearchSpace(name, PARAMETERS, entries, device="A GPU", kernel="bowl_kernel")


def failing() -> SearchSpace:
    """Nothing of it runs."""
    entries = tuple(
        Entry((block,), Outcome.BUILD_ERROR, word="CompilationFailedConfig") for block in (1, 2, 3)
    )
    return SearchSpace("failing", (Parameter("block", (1, 2, 3)),), entries)


def single() -> SearchSpace:
    """One configuration."""
    return SearchSpace("single", (Parameter("block", (64,)),), (Entry((64,), Outcome.OK, 0.001),))


def cache_document(entries: dict[str, dict[str, Any]], **header: Any) -> dict[str, Any]:
    """A cache file of a kernel with the parameters `x` and `y`."""
    return {
        "device_name": "A GPU",
        "kernel_name": "kernel",
        "tune_params_keys": ["x", "y"],
        "tune_params": {"x": [1, 2], "y": ["a", "b"]},
        "cache": entries,
        **header,
    }


def saved(folder: Path, space: SearchSpace | None = None) -> Path:
    """The file of a space, of the bowl if no other is given."""
    space = space or bowl()
    path = folder / f"{space.name}.json"
    write_space(space, path)
    return path


def written(path: Path, document: object) -> Path:
    """A file with the document as JSON."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
