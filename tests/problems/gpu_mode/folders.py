"""Synthetic problems in GPU MODE's format."""

from __future__ import annotations

from pathlib import Path

UTILS = """
import torch

def verbose_allclose(received, expected, rtol=1e-05, atol=1e-08, max_print=5):
    if received.shape != expected.shape:
        return ["SIZE MISMATCH"]
    wrong = (received - expected).abs() > atol + rtol * expected.abs()
    return [f"{int(wrong.sum())} differ"] if bool(wrong.any()) else []

def verbose_allequal(received, expected, max_print=5):
    return [] if torch.equal(received, expected) else ["they differ"]

def match_reference(data, output, reference, rtol=1e-05, atol=1e-08):
    reasons = verbose_allclose(output, reference(data), rtol=rtol, atol=atol)
    return (False, " ".join(reasons)) if reasons else (True, "")

def make_match_reference(reference, **kwargs):
    def wrapped(data, output):
        return match_reference(data, output, reference=reference, **kwargs)
    return wrapped
"""

TASK = """
import torch
from typing import TypedDict, TypeVar

input_t = TypeVar("input_t", bound=tuple)
output_t = TypeVar("output_t", bound=torch.Tensor)

class TestSpec(TypedDict):
    size: int
    seed: int
"""

YAML = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../eval.py"}

lang: "py"

description: |
  Scale each row of a matrix. The factor is different in
  each row.

config:
  main: "eval.py"

tests:
  - {"rows": 6, "cols": 32, "seed": 4242}
  - {"rows": 9, "cols": 40, "seed": 5236}
benchmarks:
  - {"rows": 64, "cols": 128, "seed": 31232}
  - {"rows": 128, "cols": 256, "seed": 4052}
test_timeout: 180
ranking_by: "geom"
"""

SCALE = """
import torch
from task import input_t, output_t
from utils import make_match_reference

def generate_input(rows: int, cols: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, cols, device="cuda", dtype=torch.float32, generator=gen).contiguous()
    factor = torch.rand(rows, device="cuda", dtype=torch.float32, generator=gen)
    output = torch.empty(rows, cols, device="cuda", dtype=torch.float32)
    return x, factor, output

def ref_kernel(data: input_t) -> output_t:
    x, factor, output = data
    output[...] = x * factor[:, None]
    return output

check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)
"""


def write_task(folder: Path, *, reference: str = SCALE, yaml: str = YAML) -> Path:
    """Write a problem's folder, and the shared files next to it."""
    task = folder / "scale_py"
    task.mkdir(parents=True)
    (folder / "utils.py").write_text(UTILS)
    (task / "task.py").write_text(TASK)
    (task / "reference.py").write_text(reference)
    (task / "task.yml").write_text(yaml)
    return task
