"""The surrogate study, at a small size: from a folder of timed kernels to its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.experiments.results import clustered_mean
from mctskernel.experiments.surrogate_study import Searches, document, main

SOURCE = """\
extern "C" __global__ void k(const float* A, float* C) {
    for (int i = threadIdx.x; i < 256; i += NT) { C[blockIdx.x * 256 + i] = 2.0f * A[blockIdx.x * 256 + i]; }
}
"""
THREADS = (32, 64, 96, 128, 192, 256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "doubles"
    path.mkdir()
    (path / "k.cu").write_text(SOURCE)
    lines = [
        {
            "name": f"NT{threads}",
            "family": "double",
            "source": "k.cu",
            "macros": {"NT": threads},
            "grid": [64, 1, 1],
            "block": [threads, 1, 1],
            "arguments": ["A", "C"],
            "buffers": {"A": 64 * 256, "C": 64 * 256},
            "us": 10.0 + 2000.0 / threads,
        }
        for threads in THREADS
    ]
    (path / "variants.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_good_predictions_save_evaluations(folder: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "study.md"
    modelled = {f"NT{threads}": 5.0 + 1000.0 / threads for threads in THREADS}
    row = {"folder": folder.name, "family": "double", "us": 1.0}
    lines = [
        row | {"name": name, "modelled_us": us, "launches_us": [{"DRAM": us}]}
        for name, us in modelled.items()
    ]
    rows.write_text("".join(json.dumps(each) + "\n" for each in lines))
    words = [str(folder), "--rows", str(rows), "--seeds", "4", "--out", str(out)]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    within = next(line for line in out.read_text().splitlines() if "within 5%" in line)
    _, _, off, predicted, predictions, *_ = (cell.strip() for cell in within.split("|"))
    assert float(predicted) < float(off)
    assert float(predictions) > 0


def test_clusters_are_drawn_whole() -> None:
    values = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    alone = clustered_mean(values, list("abcdef"))
    pairs = clustered_mean(values, list("aaabbb"))
    assert alone.mean == pairs.mean == 0.5
    assert (pairs.low, pairs.high) == (0, 1)
    assert 0 < alone.low < 0.5 < alone.high < 1
    assert clustered_mean([3.0, 5.0], ["a", "a"]).low == 4


def test_times_fewer_are_means_over_spaces_and_seeds() -> None:
    found = [
        Searches(task, np.full((2, 2), 12), np.full((2, 2), 4), np.full((2, 2), 16)) for task in ("a", "b")
    ]
    text = document(found, 2)
    assert "| within 5%   |             12.0 |              4.0 |        16.0 | 3.00 (3.00 to 3.00) |" in text
