"""The surrogate study, at a small size: from a folder of timed kernels to its page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.experiments.results import clustered_mean
from mctskernel.experiments.surrogate_study import CONTENDERS, Replays, Study, main, savings
from mctskernel.profiling.pricing import PricingDevice

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


@pytest.mark.slow
def test_the_study_writes_what_its_json_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, cache = tmp_path / "study.json", tmp_path / "predictions.jsonl"
    words = [str(folder), "--predictions", str(cache), "--seeds", "2", "--out", str(out)]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    study = msgspec.json.decode(out.read_bytes(), type=Study)
    assert {each.contender for each in study.replays} == set(CONTENDERS)
    page = out.with_suffix(".md").read_bytes()
    assert b"1 families of variants, 2 seeds each" in page

    with cache.open("ab") as file:
        file.write(b'{"space":"torn')
    monkeypatch.delattr(PricingDevice, "evaluate")
    again = CliRunner().invoke(main, words, catch_exceptions=False)
    assert again.exit_code == 0
    assert len(cache.read_bytes().splitlines()) == len(THREADS)


def test_clusters_are_drawn_whole() -> None:
    values = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    alone = clustered_mean(values, list("abcdef"))
    pairs = clustered_mean(values, list("aaabbb"))
    assert alone.mean == pairs.mean == 0.5
    assert (pairs.low, pairs.high) == (0, 1)
    assert 0 < alone.low < 0.5 < alone.high < 1
    assert clustered_mean([3.0, 5.0], ["a", "a"]).low == 4


def replayed(contender: str, evaluations: int, predictions: int) -> Replays:
    return Replays(
        "space", "task", contender, ((evaluations,) * 2,) * 2, ((predictions,) * 2,) * 2, ((1.0, 1.0),) * 4
    )


def test_what_is_saved_counts_against_what_predictions_cost() -> None:
    found = savings([replayed("off", 12, 0), replayed("filter", 4, 16)], {"space": 0.5})
    off, filtered = found
    assert (off.ratios[0].mean, off.p[0]) == (1, 1)
    assert filtered.ratios[0].mean == pytest.approx(3)
    # 16 predictions of half a second are made up for by 8 evaluations of a second.
    assert filtered.speedups[1] == pytest.approx(1)
    assert filtered.speedups[-1] == pytest.approx(12 * 60 / (4 * 60 + 8))
