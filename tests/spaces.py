"""A small search-space cache that every test can read in one look: a bowl over four parameters with holes."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace
from mctskernel.profiling.spaces import FAILURES, STAGES
from mctskernel.tasks.space import write_space_task

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


def write_space(space: SearchSpace, path: Path) -> None:
    """Write a space as a cache file, times in milliseconds."""
    words = {outcome: word for word, outcome in FAILURES.items()}
    stages = {ours: theirs for theirs, ours in STAGES.items()}
    entries = {
        ",".join(map(str, each.values)): {
            **dict(zip(space.names, each.values, strict=True)),
            "time": words[each.outcome] if each.seconds is None else each.seconds / 1e-3,
            **{stages[name]: seconds / 1e-3 for name, seconds in each.stage_seconds.items()},
        }
        for each in space.entries
    }
    header = {"device_name": space.device, "kernel_name": space.kernel, "tune_params_keys": space.names}
    written(path, cache_document(entries, **header, tune_params={p.name: p.values for p in space.parameters}))


def saved(folder: Path, space: SearchSpace | None = None) -> Path:
    """The file of a space, of the bowl if no other is given."""
    space = space or bowl()
    path = folder / f"{space.name}.json"
    write_space(space, path)
    return path


def task_folder(parent: Path, space: SearchSpace, start: Entry) -> Path:
    """The task folder of a space."""
    folder = parent / space.name
    folder.mkdir()
    write_space_task(saved(parent, space), space, start, folder)
    return folder


def written(path: Path, document: object) -> Path:
    """A file with the document as JSON."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
