"""The surrogate study, at a small size: from a folder of timed kernels to its page and plot."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from mctskernel.core.surrogate import Prediction, SurrogateUse
from mctskernel.experiments.records.cluster_bootstrap import clustered_mean
from mctskernel.experiments.subjects.recorded_spaces import RecordedSpace, read_spaces
from mctskernel.experiments.surrogate.accuracy import LEVELS, accuracy, kendall
from mctskernel.experiments.surrogate.document import Study
from mctskernel.experiments.surrogate.replays import CONTENDERS, OFF, Replays, replays
from mctskernel.experiments.surrogate.worth import worth
from mctskernel.experiments.surrogate_study import main
from mctskernel.profiling.model.price import Term
from mctskernel.profiling.model.uncertainty import REST_SIGMA
from mctskernel.profiling.surrogate import PricingDevice

SOURCE = """\
extern "C" __global__ void k(const float* A, float* C) {
    for (int i = threadIdx.x; i < 256; i += NT) { C[blockIdx.x * 256 + i] = 2.0f * A[blockIdx.x * 256 + i]; }
}
"""
THREADS = (32, 64, 96, 128, 192, 256)
FILTER = next(each for each in CONTENDERS if each.name == "filter 4, perfect")


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


@pytest.fixture(scope="module")
def space(folder: Path) -> RecordedSpace:
    (found,) = read_spaces(folder)
    return found


def test_the_study_writes_what_its_json_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, cache = tmp_path / "study.json", tmp_path / "predictions.jsonl"
    words = [str(folder), "--predictions", str(cache), "--seeds", "2", "--out", str(out)]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    study = msgspec.json.decode(out.read_bytes(), type=Study)
    (row,) = study.accuracy
    assert (row.kernels, row.unpriced, len(row.points)) == (len(THREADS), 0, len(THREADS))
    assert {each.contender for each in study.replays} == {each.name for each in CONTENDERS}
    page, plot = (out.with_suffix(suffix).read_bytes() for suffix in (".md", ".svg"))
    assert b"## Searches of 1 families of variants" in page

    with cache.open("ab") as file:
        file.write(b'{"space":"torn')
    monkeypatch.delattr(PricingDevice, "evaluate")
    again = CliRunner().invoke(main, words, catch_exceptions=False)
    assert again.exit_code == 0
    assert len(cache.read_bytes().splitlines()) == len(THREADS)
    for suffix in (".md", ".svg"):
        out.with_suffix(suffix).unlink()
    assert CliRunner().invoke(main, ["--from", str(out)]).exit_code == 0
    assert (out.with_suffix(".md").read_bytes(), out.with_suffix(".svg").read_bytes()) == (page, plot)


def test_spaces_of_one_name_are_a_sentence(folder: Path, tmp_path: Path) -> None:
    words = [str(folder), str(folder), "--predictions", str(tmp_path / "predictions.jsonl")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "Two folders hold a space called doubles/double" in result.output


def test_without_folders_there_is_a_sentence() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "Give folders" in result.output


def test_kernels_without_their_texts_are_searched_alike(space: RecordedSpace) -> None:
    plain = space.without_texts()
    for contender in (OFF, FILTER):
        assert replays(plain, {}, contender, 3) == replays(space, {}, contender, 3)


def test_a_surrogate_that_knows_the_times_saves_evaluations(space: RecordedSpace) -> None:
    plain = space.without_texts()
    found = {each.name: replays(plain, {}, each, 8) for each in (OFF, FILTER)}
    assert np.mean(found[FILTER.name].evaluations[0]) < np.mean(found["off"].evaluations[0])
    assert set(found["off"].predictions[0]) == {0}
    assert min(found[FILTER.name].predictions[0]) > 0


def test_predictions_are_found_by_the_kernels_whose_texts_were_dropped(space: RecordedSpace) -> None:
    model = next(each for each in CONTENDERS if each.name == "filter 4, model")
    known = {each: Prediction(seconds, {Term.DRAM: seconds}) for each, seconds in space.seconds.items()}
    with_texts = replays(space, known, model, 3)
    assert replays(space.without_texts(), known, model, 3) == with_texts
    assert replays(space, {}, model, 3) != with_texts


def test_errors_as_large_as_stated_are_called_so(space: RecordedSpace) -> None:
    normal = np.random.default_rng(0).standard_normal
    shares = []
    for _ in range(40):
        # Nothing but DRAM: pairs share its error, and what is left is REST_SIGMA in each.
        known = {
            each: Prediction(seconds * math.exp(REST_SIGMA * normal()), {Term.DRAM: 1.0})
            for each, seconds in space.seconds.items()
        }
        found = accuracy(space, known)
        assert found is not None
        shares.append(found.coverage)
    assert np.mean(shares, axis=0) == pytest.approx(np.array(LEVELS), abs=0.05)


def test_an_exact_model_ranks_without_regret(space: RecordedSpace) -> None:
    found = accuracy(space, {each: Prediction(seconds, {}) for each, seconds in space.seconds.items()})
    assert found is not None
    assert (found.spearman, found.kendall, found.first, found.best_of_five) == pytest.approx((1, 1, 1, 1))


def test_too_few_kernels_tell_nothing(space: RecordedSpace) -> None:
    known = {each: Prediction(seconds, {}) for each, seconds in list(space.seconds.items())[:2]}
    assert accuracy(space, known) is None


def test_kendall_allows_for_ties() -> None:
    assert kendall(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(1 / 3)
    # Of six pairs four agree, none disagrees and two are tied on one side: 4 / sqrt(6 * 4).
    assert kendall(np.array([1.0, 2, 3, 4]), np.array([1.0, 1, 2, 2])) == pytest.approx(4 / math.sqrt(24))
    assert kendall(np.array([1.0, 2]), np.array([1.0, 1])) == 0


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
    found = worth([replayed("off", 12, 0), replayed("filter", 4, 16)], {"space": 0.5})
    off, filtered = found
    assert off.break_even_seconds is None
    assert (off.saved[0].ratio.mean, off.saved[0].p) == (1, 1)
    assert filtered.saved[0].ratio.mean == pytest.approx(3)
    # 16 predictions of half a second are made up for by 8 evaluations of a second.
    assert filtered.break_even_seconds == pytest.approx(1)
    assert filtered.speedups[1] == pytest.approx(1)
    assert filtered.speedups[-1] == pytest.approx(12 * 60 / (4 * 60 + 8))


def test_off_takes_no_predictions() -> None:
    assert OFF.policy.order != "predicted"
    assert [each.use for each in CONTENDERS].count(SurrogateUse.FILTER) == 4
    assert len({each.name for each in CONTENDERS}) == len(CONTENDERS)
