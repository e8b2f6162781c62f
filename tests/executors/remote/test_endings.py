"""What ends a search on a server, and the sentence that says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel
from tests.executors import careless_server as careless
from tests.executors.careless_server import (
    FINGERPRINT,
    TOKEN,
    Fault,
    Handler,
    Request,
    careless_server,
    refuses,
    says,
)
from tests.executors.remote.connecting import HASTY, after, connect, drain, first, kernel


def test_a_task_that_is_no_longer_taken_ends_the_search(task: Path) -> None:
    openings = 0

    def forgets_and_refuses(handler: Handler, request: Request) -> bool:
        nonlocal openings
        openings += request.kind == "open"
        if request.kind == "results":
            handler.server.forget()
        return openings == 2 and request.kind == "open" and refuses(422, "No shapes.")(handler, request)

    with careless_server(forgets_and_refuses) as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        with pytest.raises(DeviceError, match=r"refuses \(422\): No shapes"):
            drain(executor, 1)
    assert openings == 2


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (refuses(401, "This token is known to nobody."), "refuses the token in MCTSKERNEL_TOKEN: This token"),
        (refuses(422, "reference.py has a mistake in line 3."), "refuses (422): reference.py has a mistake"),
        (refuses(413, "A task has at most 64 MB."), "takes nothing as large as this: A task has"),
        (says(404, b"not found"), "the same version of mctskernel"),
        (refuses(404), "the same version of mctskernel"),
        (refuses(503, "The GPU fell off the bus."), "can't judge anything: The GPU fell off the bus."),
        (
            refuses(429, "Eight sessions are open.", retry_after="60"),
            "answered 429: Eight sessions are open. Try",
        ),
        (says(302, location="http://elsewhere/"), "a redirection, which isn't followed"),
        (says(418), "refuses (418)"),
        (careless.resets, "Is `mctskernel serve` running there"),
        (careless.hangs, "didn't answer within 0.5 s"),
        (careless.drips, "didn't answer within 0.5 s"),
        (careless.compresses, "compressed its reply"),
        (says(200, b"{}"), "something else than was asked"),
        (refuses(500, f"You sent {TOKEN}.\x1b[31m\n" + "x" * 5000), "You sent [token]"),
    ],
)
def test_what_only_the_user_can_mend_is_a_sentence(task: Path, fault: Fault, sentence: str) -> None:
    with careless_server(fault) as server, pytest.raises(DeviceError) as caught:
        connect(server, task, HASTY)
    told = str(caught.value)
    assert sentence in told
    assert TOKEN not in told and "\x1b" not in told and "\n" not in told and len(told) < 1000


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (refuses(401), "refuses the token"),
        (refuses(503, "The GPU fell off the bus."), "The GPU fell off the bus"),
        (careless.resets, "Nothing is lost: `mctskernel resume` goes on"),
        (careless.hangs, "Nothing is lost: `mctskernel resume` goes on"),
        (says(200, b"nonsense"), "something else than was asked"),
        (refuses(404), "forgets every session"),
    ],
)
@pytest.mark.parametrize("kind", ["put", "results"])
def test_a_server_that_goes_wrong_for_good_ends_the_search(
    task: Path, fault: Fault, sentence: str, kind: str
) -> None:
    if kind == "put" and "something else" in sentence:
        return  # The body of an acceptance isn't read.
    with careless_server(after(0, fault, kind)) as server, connect(server, task, HASTY) as executor:
        executor.submit(0, kernel(0))
        executor.submit(1, kernel(1))
        with pytest.raises(DeviceError, match=sentence.replace("(", r"\(")):
            drain(executor, 2)
        if kind == "results":
            executor.submit(2, kernel(2))
            with pytest.raises(DeviceError):
                drain(executor, 1)


def test_a_server_that_finishes_nothing_is_given_up(task: Path) -> None:
    def loses(handler: Handler, request: Request) -> bool:
        if request.kind == "put":
            handler.send(202, b"")
        return request.kind == "put"

    patience = replace(HASTY, stall=0.5)
    with careless_server(loses) as server, connect(server, task, patience) as executor:
        executor.submit(0, kernel(0))
        with pytest.raises(DeviceError, match="has finished nothing for"):
            drain(executor, 1)


def test_more_bytes_than_are_read_are_no_reply(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mctskernel.executors.remote.server.MOST_BYTES", 1 << 20)
    with (
        careless_server(careless.pours) as server,
        pytest.raises(DeviceError, match="sent more than the 1048576"),
    ):
        connect(server, task, HASTY)


def test_a_kernel_that_is_too_large_is_a_failure_of_the_kernel(task: Path) -> None:
    fault = first(refuses(413, "A kernel has at most 1 MB."), "put")
    with careless_server(fault) as server, connect(server, task) as executor:
        executor.submit(0, Kernel("x" * 1000))
        ((ticket, evaluation),) = executor.wait(5)
        assert (ticket, evaluation.outcome) == (0, Outcome.REJECTED)
        assert evaluation.message.endswith("A kernel has at most 1 MB.")
        executor.submit(1, kernel(1))
        assert drain(executor, 1) == [(1, "kernel 1")]


@pytest.mark.parametrize(
    "impossible",
    [
        Evaluation(Outcome.OK, Source.MEASURED),
        Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("", 0.0, 1.0, 1.0),)),
        Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("", -1.0, 1.0, 1.0),)),
        Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("", float("inf"), 1.0, 1.0),)),
        Evaluation(Outcome.OK, Source.MODELLED, timings=(Timing("", 1.0, 1.0, 1.0, (0.0,)),)),
        Evaluation(Outcome.OK, Source.MODELLED, retimed=(Timing("", 1.0, 1.0, 1.0, (), -1.0),)),
        Evaluation(Outcome.OK, Source.MODELLED, stage_seconds={"build": -1.0}),
        Evaluation(Outcome.OK, Source.MODELLED, stage_seconds={"a": 1e308, "b": 1e308}),
    ],
)
def test_what_can_not_be_is_not_believed(task: Path, impossible: Evaluation) -> None:
    with careless_server(judge=lambda _: impossible) as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        with pytest.raises(DeviceError, match="what can't be"):
            drain(executor, 1)


def test_another_device_after_a_restart_is_refused(task: Path) -> None:
    def swaps(handler: Handler, request: Request) -> bool:
        handler.server.forget()
        handler.server.fingerprint = {**FINGERPRINT, "gpu": "another model"}
        return False

    with careless_server(first(swaps, "results")) as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        with pytest.raises(
            DeviceError, match="came back with gpu = another model; it was a model of nothing"
        ):
            drain(executor, 1)


@pytest.mark.parametrize("kind", ["put", "results"])
def test_a_server_that_is_gone_for_good_ends_the_last_gate(task: Path, kind: str) -> None:
    with (
        careless_server(after(0, careless.resets, kind)) as server,
        connect(server, task, HASTY) as executor,
        pytest.raises(DeviceError, match="Nothing is lost: `mctskernel resume` goes on"),
    ):
        executor.last_gate(kernel(1), kernel(0))
