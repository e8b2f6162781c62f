"""T4 results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mctskernel.core.evaluation import Outcome
from mctskernel.core.space import Parameter, SpaceError
from mctskernel.profiling.spaces import read_space
from tests import spaces


def result(x: int, time: object = 2.5, invalidity: str = "correct", **more: Any) -> dict[str, Any]:
    """One result, as Kernel Tuner writes it."""
    return {
        "configuration": {"x": x, "y": "a"},
        "times": {"compilation": 900.0, "benchmark": 100.0, "validation": 1.0, "runtimes": [2.5]},
        "invalidity": invalidity,
        "correctness": 1,
        "measurements": [{"name": "time", "value": time, "unit": "ms"}],
        "objectives": ["time"],
        **more,
    }


def document(*results: object, **header: Any) -> dict[str, Any]:
    return {"schema_version": "1.0.0", "results": list(results), **header}


def test_results_are_a_space(tmp_path: Path) -> None:
    words = ["timeout", "compile", "runtime", "correctness", "constraints"]
    failed = [result(number, invalidity=word, measurements=[]) for number, word in enumerate(words, 2)]
    space = read_space(spaces.written(tmp_path / "some.json", document(result(1), *failed)))
    assert space.parameters == (Parameter("x", (1, 2, 3, 4, 5, 6)), Parameter("y", ("a",)))
    assert space.entries[0].seconds == 0.0025
    assert space.entries[0].stage_seconds == {"compile": 0.9, "benchmark": 0.1, "verification": 0.001}
    assert [each.outcome for each in space.entries[1:]] == [
        Outcome.TIMEOUT,
        Outcome.BUILD_ERROR,
        Outcome.LAUNCH_ERROR,
        Outcome.WRONG_RESULT,
        Outcome.REJECTED,
    ]
    assert [each.word for each in space.entries[1:]] == words


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (document(), "no configurations"),
        (document(result(1), schema_version="2.0.0"), "version 2.0.0"),
        (document({"invalidity": "correct"}), "with its 'configuration'"),
        (document(result(1), result(2, configuration={"x": 2})), "'y' is missing"),
        (document(result(1, invalidity="sad")), "'sad', which is none of"),
        (
            document(result(1, objectives=["score"], measurements=[{"name": "score", "value": 1.0}])),
            "'score'",
        ),
        (document(result(1, measurements=[])), "no time"),
        (document(result(1, time=[1.0])), "neither a number"),
        (document(result(1), metadata={"timeunit": "fortnights"}), "'fortnights'"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence_that_names_it(
    tmp_path: Path, content: Any, says: str
) -> None:
    path = spaces.written(tmp_path / "bad.json", content)
    with pytest.raises(SpaceError, match=says) as raised:
        read_space(path)
    assert str(path) in str(raised.value)
