"""What crosses the network comes back as it was sent, or as a journal would keep it."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mctskernel.core.evaluation import Check, Evaluation, Guard, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel, Language
from mctskernel.executors.http_api import (
    GateSubmission,
    MalformedError,
    OpenSession,
    Problem,
    Result,
    Results,
    ServerStatus,
    SessionOpened,
    Submission,
    decode,
    encode,
    evaluation_path,
    gate_path,
    results_path,
    session_path,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=20)
names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
kernels = st.builds(Kernel, texts, st.sampled_from(Language))
timings = st.builds(
    Timing, texts, finite, finite, finite, st.lists(finite, max_size=3).map(tuple), st.none() | finite
)
evaluations = st.builds(
    Evaluation,
    st.sampled_from(Outcome),
    st.sampled_from(Source),
    message=texts,
    timings=st.lists(timings, max_size=2).map(tuple),
    counters=st.dictionaries(texts, finite, max_size=2),
    checks=st.lists(st.builds(Check, texts, st.integers(0, 2**32), st.booleans(), finite), max_size=2).map(
        tuple
    ),
    guard=st.none() | st.sampled_from(Guard),
)
results = st.builds(Result, st.integers(1, 2**40), names, st.booleans(), evaluations)
messages = st.one_of(
    st.builds(
        OpenSession, st.dictionaries(texts, st.binary(max_size=50), max_size=3), seed=st.integers(0, 2**32)
    ),
    st.builds(Submission, kernels),
    st.builds(GateSubmission, kernels, kernels),
    st.builds(Results, st.lists(results, max_size=3).map(tuple)),
    st.builds(
        SessionOpened,
        names,
        st.integers(0, 64),
        st.dictionaries(texts, texts, max_size=2),
        st.lists(texts, max_size=2).map(tuple),
        texts,
        texts,
    ),
    st.builds(Problem, texts),
)


@settings(max_examples=50, deadline=None)
@given(messages)
def test_a_message_comes_back_as_it_was_sent(message: Any) -> None:
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_lacks_comes_back_as_a_journal_keeps_it(number: float) -> None:
    timing = Timing("4096", number, 1.0, 2.0, (number, 1.5), baseline_seconds=number)
    evaluation = Evaluation(Outcome.OK, Source.MEASURED, timings=(timing,), counters={"x": number})

    found = decode(encode(Result(1, "a", gate=False, evaluation=evaluation)), Result).evaluation

    most = math.copysign(sys.float_info.max, number)
    assert found.counters == {"x": most}
    assert found.timings == (Timing("4096", most, 1.0, 2.0, (most, 1.5), baseline_seconds=most),)


def test_text_that_utf8_lacks_comes_back_readable() -> None:
    evaluation = Evaluation(Outcome.BUILD_ERROR, Source.MEASURED, message="\ud800!", log="\udfff")

    found = decode(encode(Result(1, "a", gate=False, evaluation=evaluation)), Result).evaluation

    assert (found.message, found.log) == ("?!", "?")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Submission, b""),
        (Submission, b"[" * 100_000),
        (Submission, b'{"kernel": {"source": 1}}'),
        (Submission, b'{"kernel": {"source": "\xff"}}'),
        (Submission, b'{"kernel": {"source": ""}, "gate": true}'),
        (OpenSession, b'{"task": {"task.toml": "not base64!"}}'),
        (OpenSession, b'{"task": {}, "seed": -1}'),
        (OpenSession, b'{"task": {}, "language": "cobol"}'),
        (Results, b'{"results": [{"number": 1, "key": "../a", "gate": false, "evaluation": {}}]}'),
        (ServerStatus, b'{"version": "1" '),
    ],
)
def test_anything_else_is_refused_with_a_sentence(kind: type[Any], body: bytes) -> None:
    with pytest.raises(MalformedError, match=rf"^The body is no {kind.__name__}: .*\.$"):
        decode(body, kind)


def test_the_paths_are_those_of_version_1() -> None:
    assert session_path("s") == "/v1/sessions/s"
    assert evaluation_path("s", "k") == "/v1/sessions/s/evaluations/k"
    assert gate_path("s", "k") == "/v1/sessions/s/gates/k"
    assert results_path("s", 3, 2.5) == "/v1/sessions/s/results?after=3&wait=2.5"
