"""Evaluations on a server: each comes back once, whatever passes between here and there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mctskernel.core.device import Trial
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel, Language
from tests.executors import careless_server as careless
from tests.executors.careless_server import (
    FINGERPRINT,
    Handler,
    Request,
    careless_server,
    now_and_then,
    refuses,
)
from tests.executors.remote.connecting import QUICK, after, connect, drain, first, kernel


def test_what_is_submitted_comes_back_and_the_task_is_the_servers(task: Path) -> None:
    with careless_server() as server, connect(server, task) as executor:
        assert (executor.capacity, executor.fingerprint()) == (4, FINGERPRINT)
        assert executor.remarks == ("No counters.",)
        for number in range(10):
            executor.submit(number, kernel(number))
        assert sorted(drain(executor, 10)) == [(number, f"kernel {number}") for number in range(10)]
        assert executor.wait(0.01) == []
        assert executor.last_gate(kernel(99), kernel(0)).message == "kernel 99"
        (session,) = server.sessions.values()
        opening = session.opening
        assert opening.task == {"task.toml": b'name = "x"\n', "weights.bin": bytes(range(256))}
        assert (opening.seed, opening.language, opening.trial) == (7, Language.CUDA, Trial.SEARCH)
        assert opening.architecture == "H100"
    assert not server.sessions, "a session is closed by who opened it"
    assert set(server.judged.values()) == {1}


def test_fewer_workers_than_the_server_has(task: Path) -> None:
    with careless_server() as server, connect(server, task, workers=2) as executor:
        assert executor.capacity == 2
        server.capacity = 1
        executor.submit(0, kernel(0))
        assert drain(executor, 1)


def test_a_server_without_room_is_given_one_evaluation(task: Path) -> None:
    with careless_server(capacity=0) as server, connect(server, task) as executor:
        assert executor.capacity == 1
        executor.submit(0, kernel(0))
        assert drain(executor, 1)
    with careless_server() as server, pytest.raises(ValueError, match="-1 workers"):
        connect(server, task, workers=-1)


def test_a_capacity_that_changes_is_heard_of(task: Path) -> None:
    def slowly(handled: Kernel) -> Evaluation:
        time.sleep(1.0)
        return careless.judge(handled)

    with careless_server(judge=slowly) as server, connect(server, task) as executor:
        server.capacity = 9
        executor.submit(0, kernel(0))
        assert drain(executor, 1)
        assert executor.capacity == 9


@pytest.mark.parametrize("seed", range(4))
def test_every_ticket_comes_back_once_through_all_that_passes(task: Path, seed: int) -> None:
    fault = now_and_then(0.35, seed)
    with careless_server(after(1, fault)) as server, connect(server, task) as executor:
        for number in range(30):
            executor.submit(number, kernel(number))
        found = drain(executor, 30)
        assert executor.wait(0.1) == []
    assert sorted(found) == [(number, f"kernel {number}") for number in range(30)]


@pytest.mark.parametrize("kind", ["open", "put", "results", "session"])
def test_no_fault_of_a_request_has_a_kernel_judged_twice(task: Path, kind: str) -> None:
    faults = sorted(
        set(careless.PASSING) - {careless.forgets}, key=lambda fault: fault is not careless.repeats
    )
    left = list(faults)

    def one_after_the_other(handler: Handler, request: Request) -> bool:
        return request.kind == kind and bool(left) and left.pop()(handler, request)

    def slowly(handled: Kernel) -> Evaluation:
        time.sleep(0.0 if kind != "session" else QUICK.audit / 5)
        return careless.judge(handled)

    with careless_server(one_after_the_other, judge=slowly) as server, connect(server, task) as executor:
        for number in range(len(faults)):
            executor.submit(number, kernel(number))
        found = drain(executor, len(faults))
    assert not left or kind == "session"
    assert sorted(found) == [(number, f"kernel {number}") for number in range(len(faults))]
    assert set(server.judged.values()) == {1}


def test_a_kernel_that_the_server_lost_is_put_again(task: Path) -> None:
    def loses(handler: Handler, request: Request) -> bool:
        handler.send(202, b"")
        return True

    with careless_server(first(loses, "put")) as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        assert drain(executor, 1) == [(0, "kernel 0")]


def test_results_are_acknowledged_once_they_are_counted(task: Path) -> None:
    with careless_server() as server, connect(server, task) as executor:
        for number in range(20):
            executor.submit(number, kernel(number))
            drain(executor, 1)
        (session,) = server.sessions.values()
        assert session.acknowledged >= 19


def test_the_last_gate_outlives_a_restart_of_the_server(task: Path) -> None:
    with careless_server(first(careless.forgets, "results")) as server, connect(server, task) as executor:
        assert executor.last_gate(kernel(1), kernel(0)).message == "kernel 1"
    assert server.judged["kernel 1"] <= 2


def test_a_task_that_was_taken_before_is_not_at_fault_when_its_process_dies_as_it_begins(task: Path) -> None:
    openings = 0

    def forgets_and_fails(handler: Handler, request: Request) -> bool:
        nonlocal openings
        openings += request.kind == "open"
        if request.kind == "results" and openings == 1:
            handler.server.forget()
        return openings in (2, 3) and request.kind == "open" and refuses(500, "It died.")(handler, request)

    with careless_server(forgets_and_fails) as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        assert drain(executor, 1) == [(0, "kernel 0")]
    assert openings == 4
