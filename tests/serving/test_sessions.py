"""Sessions over HTTP: what is judged comes back once, however often it is asked for."""

from __future__ import annotations

from mctskernel.core.evaluation import Outcome
from tests.serving.conftest import Served


def test_a_kernel_is_judged_and_its_result_said_until_it_is_acknowledged(served: Served) -> None:
    client = served.client()
    client.open()

    assert client.put("first", "any").status_code == 202
    (result,) = client.results()

    assert (result.number, result.key, result.gate) == (1, "first", False)
    assert result.evaluation.outcome is Outcome.OK
    assert client.results() == (result,)
    assert client.results(after=1, wait=0) == ()
    assert client.results(after=0, wait=0) == ()
