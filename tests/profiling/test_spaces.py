"""Search spaces in files: Kernel Tuner's cache files, and whatever else a file may hold."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Entry, Parameter, SearchSpace, SpaceError
from mctskernel.profiling.spaces import FAILURES, read_space
from tests import spaces

FAST = {"x": 1, "y": "a", "time": 2.5}


def test_times_costs_and_failures_are_seconds_and_outcomes(tmp_path: Path) -> None:
    costs = {"compile_time": 900.0, "benchmark_time": 100.0, "verification_time": 0, "strategy_time": -1.0}
    entries = {
        "1,a": FAST | costs | {"framework_time": 5.0, "GFLOP/s": 12.0, "times": [2.5, 2.5]},
        "1,b": {"x": 1, "y": "b", "time": "CompilationFailedConfig", "compile_time": 50.0},
        "2,a": {"x": 2, "y": "a", "time": "RuntimeFailedConfig"},
        "2,b": {"x": 2, "y": "b", "time": "InvalidConfig"},
    }
    space = read_space(spaces.written(tmp_path / "some kernel.json", spaces.cache_document(entries)))
    assert (space.name, space.device, space.kernel) == ("some_kernel", "A GPU", "kernel")
    assert space.parameters == (Parameter("x", (1, 2)), Parameter("y", ("a", "b")))
    first, *failed = space.entries
    assert (first.values, first.seconds) == ((1, "a"), 0.0025)
    assert first.stage_seconds == {
        "compile": 0.9,
        "benchmark": 0.1,
        "verification": 0.0,
        "strategy": 0.0,
        "framework": 0.005,
    }
    assert first.cost_seconds == pytest.approx(1.005)
    assert [each.outcome for each in failed] == [Outcome.BUILD_ERROR, Outcome.LAUNCH_ERROR, Outcome.REJECTED]
    assert failed[0].word == "CompilationFailedConfig"
    assert failed[0].cost_seconds == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "no cache file"),
        ({}, "no cache file"),
        (spaces.cache_document({}), "has no configurations"),
        (spaces.cache_document({"1,a": {"x": 1, "time": 1.0}}), "'y' is missing"),
        (spaces.cache_document({"1,a": FAST | {"time": "Tired"}}), "'Tired' is no failure"),
        (spaces.cache_document({"1,a": FAST | {"time": 0}}), "not above 0"),
        (spaces.cache_document({"1,a": FAST | {"compile_time": "long"}}), "no time"),
        (spaces.cache_document({}, tune_params_keys=["x"]), "each once"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence_that_names_it(
    tmp_path: Path, content: Any, says: str
) -> None:
    path = spaces.written(tmp_path / "bad.json", content)
    with pytest.raises(SpaceError, match=says) as raised:
        read_space(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b'{"tune_params": {"x": [1]}, "cache": {"1": {"x": 1', "not JSON"),
        (b"\xff\xfe{}", "no UTF-8 text"),
        (b"[" * 100_000, "not JSON"),
        (gzip.compress(b'{"cache": 1}' * 999)[:-20], "cut off"),
        (gzip.compress(b"{}")[:12] + b"\0" * 30, "damaged|cut off"),
    ],
    ids=["empty", "begun", "no text", "deep", "cut off", "damaged"],
)
def test_a_file_that_is_no_document_is_a_sentence(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(SpaceError, match=says) as raised:
        read_space(path)
    assert str(path) in str(raised.value)


def test_a_file_that_would_not_fit_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mctskernel.profiling.spaces.MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 22)))
    with pytest.raises(SpaceError, match="larger than 1 MiB"):
        read_space(path)


@given(
    milliseconds=st.floats(1e-9, 1e9),
    outcome=st.sampled_from(list(FAILURES.values())),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True),
)
def test_every_time_outcome_and_name_survives(
    tmp_path_factory: pytest.TempPathFactory, milliseconds: float, outcome: Outcome, names: list[str]
) -> None:
    first, second = (True,) * len(names), ("text",) * len(names)
    stages = {"compile": milliseconds * 1e-3}
    space = SearchSpace(
        "any",
        tuple(Parameter(f"_{name}", (True, "text")) for name in names),
        (Entry(first, Outcome.OK, milliseconds * 1e-3, "", stages), Entry(second, outcome)),
    )
    path = tmp_path_factory.getbasetemp() / "any.json"
    spaces.write_space(space, path)
    assert read_space(path) == space
