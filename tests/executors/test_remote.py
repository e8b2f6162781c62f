"""Evaluations on a server: each comes back once or the search is told why not, whatever the server does."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.backoff import Backoff
from mctskernel.core.device import DeviceError, DeviceSpec, Trial
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Kernel, Language
from mctskernel.executors import open_executor
from mctskernel.executors.remote.address import PLAIN_VARIABLE, TOKEN_VARIABLE, address_of
from mctskernel.executors.remote.executor import RemoteExecutor, server_status
from mctskernel.executors.remote.server import Patience
from mctskernel.profiling.processes.child_process import environment_without_secrets, worker_environment
from tests.executors import careless_server as careless
from tests.executors.careless_server import (
    FINGERPRINT,
    TOKEN,
    CarelessServer,
    Fault,
    Handler,
    Request,
    careless_server,
    now_and_then,
    refuses,
    says,
)

QUICK = Patience(
    request=0.5,
    opening=0.5,
    poll=0.2,
    first=4.0,
    outage=8.0,
    audit=0.3,
    connect=0.5,
    backoff=Backoff(first=0.005, longest=0.05, patience=0.1),
)
HASTY = replace(QUICK, first=0.5, outage=0.4)


@pytest.fixture(autouse=True)
def a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.toml").write_bytes(b'name = "x"\n')
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    return folder


def connect(
    server: CarelessServer, task: Path, patience: Patience = QUICK, workers: int = 0
) -> RemoteExecutor:
    spec = DeviceSpec(server.url, task, seed=7)
    return RemoteExecutor(spec, address_of(server.url), workers=workers, patience=patience)


def kernel(number: int) -> Kernel:
    return Kernel(f"kernel {number}")


def drain(executor: RemoteExecutor, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [(ticket, evaluation.message) for ticket, evaluation in executor.wait(0.1)]
    return found


def after(requests: int, fault: Fault, kind: str = "") -> Fault:
    """A fault from so many requests of a kind on; before that, and for other kinds, all is well."""
    seen = 0

    def later(handler: Handler, request: Request) -> bool:
        nonlocal seen
        if kind and request.kind != kind:
            return False
        seen += 1
        return seen > requests and fault(handler, request)

    return later


def first(fault: Fault, kind: str) -> Fault:
    """A fault that happens to the first request of a kind alone."""
    seen = 0

    def once(handler: Handler, request: Request) -> bool:
        nonlocal seen
        seen += request.kind == kind
        return seen == 1 and request.kind == kind and fault(handler, request)

    return once


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


def test_waiting_for_the_server_is_a_remark_until_it_is_back(task: Path) -> None:
    away = True

    def goes(handler: Handler, request: Request) -> bool:
        return away and request.kind != "open" and careless.resets(handler, request)

    with (
        careless_server(goes) as server,
        connect(server, task, replace(QUICK, telling=0.05)) as executor,
    ):
        executor.submit(0, kernel(0))
        until = time.monotonic() + 5
        while len(executor.remarks) < 2 and time.monotonic() < until:
            assert executor.wait(0.02) == []
        assert executor.remarks[1].startswith(
            f"Waiting for the server at {server.url}: it ended the connection"
        )
        away = False
        assert drain(executor, 1) == [(0, "kernel 0")]
        until = time.monotonic() + 5
        while len(executor.remarks) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert executor.remarks == ("No counters.",)


@pytest.mark.parametrize("kind", ["put", "results"])
def test_waiting_for_the_server_at_the_last_gate_is_logged_once(
    task: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    back = time.monotonic() + 0.5

    def goes(handler: Handler, request: Request) -> bool:
        return request.kind == kind and time.monotonic() < back and careless.resets(handler, request)

    with careless_server(goes) as server, connect(server, task, replace(QUICK, telling=0.05)) as executor:
        assert executor.last_gate(kernel(1), kernel(0)).message == "kernel 1"
        assert executor.last_gate(kernel(2), kernel(0)).message == "kernel 2"
    told = [each.getMessage() for each in caplog.records if each.name.startswith("mctskernel")]
    assert told == [
        f"Waiting for the server at {server.url}: it ended the connection before its reply was whole."
    ]


@pytest.mark.parametrize("kind", ["put", "results"])
def test_a_server_that_is_gone_for_good_ends_the_last_gate(task: Path, kind: str) -> None:
    with (
        careless_server(after(0, careless.resets, kind)) as server,
        connect(server, task, HASTY) as executor,
        pytest.raises(DeviceError, match="Nothing is lost: `mctskernel resume` goes on"),
    ):
        executor.last_gate(kernel(1), kernel(0))


@pytest.mark.parametrize("fault", [careless.hangs, careless.drips], ids=["hang", "drip"])
def test_closing_is_immediate_whatever_the_server_does(task: Path, fault: Fault) -> None:
    patient = Patience()
    with careless_server(after(1, fault)) as server:
        executor = connect(server, task, patient)
        for number in range(4):
            executor.submit(number, kernel(number))
        assert executor.wait(0.1) == []
        began = time.monotonic()
        executor.close()
        assert time.monotonic() - began < 1.5


CTRL_C = """
import sys
from pathlib import Path
from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel
from mctskernel.executors import open_executor

try:
    with open_executor(DeviceSpec(sys.argv[1], Path(sys.argv[2])), 0) as executor:
        print("in", flush=True)
        executor.last_gate(Kernel("a"), Kernel("b"))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_a_last_gate_at_once(task: Path) -> None:
    with careless_server(after(0, careless.hangs, "results")) as server:
        command = [sys.executable, "-c", CTRL_C, server.url, str(task)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "in\n"
                time.sleep(0.1)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=20)
            finally:
                process.kill()
        assert (process.returncode, complaints) == (130, "")
        assert time.monotonic() - began < 3


def test_the_token_goes_to_the_server_and_nowhere_else(
    task: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with careless_server() as server, connect(server, task) as executor:
        executor.submit(0, kernel(0))
        drain(executor, 1)
        assert TOKEN not in repr(address_of(server.url)) + repr(executor)
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in server.requests)
    assert TOKEN not in caplog.text
    for environment in (worker_environment(tmp_path), environment_without_secrets()):
        assert TOKEN not in environment.values()


@pytest.mark.parametrize(
    ("url", "environment", "sentence"),
    [
        ("http://", {}, "no address of a server"),
        ("http://:80", {}, "no address of a server"),
        ("http://host:port", {}, "no address of a server"),
        ("http://[::1", {}, "no address of a server"),
        ("ftp://host", {}, "no address of a server"),
        ("http://me:secret@localhost:1", {}, "put the token into MCTSKERNEL_TOKEN"),
        ("http://localhost:1?token=x", {}, "leave '\\?' and '#' out"),
        ("http://gpu-machine:8765", {}, "ssh -L 8765:localhost:8765 gpu-machine"),
        ("http://127.0.0.1.example.com", {}, "isn't encrypted"),
        ("http://gpu-machine:8765", {PLAIN_VARIABLE: "another"}, "isn't encrypted"),
        ("http://localhost:1", {TOKEN_VARIABLE: " "}, "set the environment variable MCTSKERNEL_TOKEN"),
        ("http://localhost:1", {TOKEN_VARIABLE: "a b"}, "holds no token"),
        ("http://localhost:1", {TOKEN_VARIABLE: "a\nb"}, "holds no token"),
    ],
)
def test_an_address_that_can_not_be_used_is_a_sentence(
    url: str, environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(DeviceError, match=sentence) as caught:
        address_of(url, {TOKEN_VARIABLE: TOKEN, **environment})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("http://localhost:8765/", {}),
        ("http://127.8.9.1:8765", {}),
        ("http://[::1]:8765", {}),
        ("https://gpu-machine", {}),
        ("https://gpu-machine/behind/a/proxy/", {}),
        ("http://gpu-machine:8765", {PLAIN_VARIABLE: "other, GPU-machine"}),
    ],
)
def test_an_address_that_can_be_used(url: str, environment: dict[str, str]) -> None:
    assert address_of(url, {TOKEN_VARIABLE: TOKEN, **environment}).url == url.rstrip("/")


def test_what_stays_on_this_machine_goes_through_no_proxy(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with careless_server() as server, connect(server, task) as executor:
        assert executor.capacity == 4


def test_no_file_is_sent_that_a_link_leads_to(task: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    (task / "kernel.cu").symlink_to(tmp_path / "private")
    with careless_server() as server, pytest.raises(DeviceError, match="is a link that leads out"):
        connect(server, task)
    assert not server.requests


def test_the_status_of_a_server(task: Path) -> None:
    with careless_server() as server:
        assert server_status(server.url, HASTY).device == "model"
        with open_executor(DeviceSpec(server.url, task), 0) as executor:
            assert executor.capacity == 4
    with careless_server(says(404)) as server, pytest.raises(DeviceError, match="the same version"):
        server_status(server.url, HASTY)
