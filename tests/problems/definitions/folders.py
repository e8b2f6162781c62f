"""Synthetic problems in the formats of flashinfer-bench and SOL-ExecBench."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCALE = """\
import torch

@torch.no_grad()
def run(x, weight, gain):
    return x * weight * gain
"""

DEFINITION: Mapping[str, Any] = {
    "name": "scale_h8",
    "op_type": "scale",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "weight": {"shape": ["hidden"], "dtype": "float32"},
        "gain": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "float32"}},
    "reference": SCALE,
    "tags": ["an unknown field"],
}

INPUTS: Mapping[str, Any] = {
    "x": {"type": "random"},
    "weight": {"type": "random"},
    "gain": {"type": "scalar", "value": 2.0},
}

GATHER = """\
import torch

def get_inputs(axes_and_scalars, device):
    rows, picked = axes_and_scalars["rows"], axes_and_scalars["picked"]
    table = torch.randn(rows, axes_and_scalars["hidden"], device=device)
    return {"table": table, "index": torch.randint(0, rows, (picked,), dtype=torch.int32, device=device)}

@torch.no_grad()
def run(table, index):
    assert index.min() >= 0 and index.max() < table.shape[0]
    return {"out": table[index.long()]}
"""

CUSTOM: Mapping[str, Any] = {
    "name": "gather",
    "custom_inputs_entrypoint": "get_inputs",
    "axes": {
        "rows": {"type": "var"},
        "each": {"type": "var"},
        "picked": {"type": "expr", "expression": "rows * each"},
        "hidden": {"type": "const", "value": 8},
    },
    "inputs": {
        "table": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "index": {"shape": ["picked"], "dtype": "int32"},
    },
    "outputs": {"out": {"shape": ["picked", "hidden"], "dtype": "float32"}},
    "reference": GATHER,
    "constraints": ["rows > 0"],
}


def workload(number: int, axes: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """A workload of the definition above, unless other inputs are given."""
    return {"uuid": f"workload-{number}", "axes": dict(axes), "inputs": dict(INPUTS), **more}


def changed(definition: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy with other fields; `axes__rows` is a field of a field."""
    found = copy.deepcopy(dict(definition))
    for name, value in fields.items():
        *path, last = name.split("__")
        place = found
        for each in path:
            place = place[each]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return found


def write_sol(folder: Path, definition: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]]) -> Path:
    """A problem as SOL-ExecBench has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(definition))
    (folder / "workload.jsonl").write_text("".join(json.dumps(each) + "\n" for each in workloads))
    return folder


def write_flashinfer(
    root: Path, definition: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]]
) -> Path:
    """A data set as flashinfer-bench has it, with one definition, whose file this is."""
    name = definition["name"]
    file = root / "definitions" / "scale" / f"{name}.json"
    lines = root / "workloads" / "scale" / f"{name}.jsonl"
    for path in (file, lines):
        path.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(definition))
    traces = [
        {"definition": name, "workload": each, "solution": None, "evaluation": None} for each in workloads
    ]
    lines.write_text("".join(json.dumps(each) + "\n" for each in traces))
    return file
