"""Whatever a file holds, reading it gives a sound space or a sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mctskernel.core.space import SearchSpace, SpaceError, configuration_kernel, values_of
from mctskernel.profiling.spaces import read_space, write_space
from tests import spaces
from tests.profiling.spaces.test_t4 import document, result

CACHE = spaces.cache_document(
    {
        "1,a": {"x": 1, "y": "a", "time": 2.5, "compile_time": 9.0},
        "2,b": {"x": 2, "y": "b", "time": "RuntimeFailedConfig", "outcome": "race"},
    }
)
T4 = document(result(1), result(2, invalidity="compile"), metadata={"timeunit": "ms"})

LIMITS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "time",
        [],
        [1],
        {},
        {"x": 1},
    ]
) | st.recursive(st.none() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2), max_leaves=4)


def places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a document."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path, *(each for key, value in inner for each in places(value, (*path, key)))]


def changed(found: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a document with another value at a path."""
    if not path:
        return value
    copy = dict(found) if isinstance(found, dict) else list(found)
    copy[path[0]] = changed(found[path[0]], path[1:], value)
    return copy


def check(path: Path) -> None:
    """Read the file; what comes of it can be searched and written."""
    try:
        space: SearchSpace = read_space(path)
    except SpaceError as error:
        assert str(path) in str(error)
        return
    assert space.entries
    for entry in space.entries:
        assert (entry.seconds is not None) == (entry.outcome == "ok")
        kernel = configuration_kernel(space, entry.values)
        assert values_of(space, kernel) == entry.values
        assert len(kernel.identity) == 64
        # A journal holds what a root decides.
        msgspec.json.decode(msgspec.json.encode(list(kernel.settings.values())), type=list[float | str])
    written = path.with_name(f"{space.name}.json")
    write_space(space, written)
    assert read_space(written).entries == space.entries


@pytest.mark.parametrize("original", [CACHE, T4], ids=["cache", "T4"])
@given(data=st.data())
@LIMITS
def test_values_of_another_kind(tmp_path: Path, original: Any, data: st.DataObject) -> None:
    mutated = original
    for _ in range(data.draw(st.integers(1, 3))):
        mutated = changed(mutated, data.draw(st.sampled_from(places(mutated))), data.draw(ODD))
    check(spaces.written(tmp_path / "odd.json", mutated))


@pytest.mark.parametrize("original", [CACHE, T4], ids=["cache", "T4"])
@given(data=st.data())
@LIMITS
def test_damaged_bytes(tmp_path: Path, original: Any, data: st.DataObject) -> None:
    raw = json.dumps(original).encode()
    raw = gzip.compress(raw, mtime=0) if data.draw(st.booleans()) else raw
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(start + 8, len(raw)) if data.draw(st.booleans()) else len(raw)))
    path = tmp_path / "odd.json"
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=4)) + raw[end:])
    check(path)
