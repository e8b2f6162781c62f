"""Sessions over HTTP: what is judged comes back once, however often it is asked for, and whatever is lost meanwhile."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mctskernel.core.evaluation import Guard, Outcome
from mctskernel.executors.http_api import (
    SESSIONS,
    STATUS,
    OpenSession,
    Problem,
    ServerStatus,
    SessionOpened,
    SessionStatus,
    decode,
    encode,
    session_path,
)
from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError
from tests.serving.conftest import Client, Serve, Served


@contextmanager
def opened(served: Served, name: str = "alice") -> Iterator[Client]:
    """A client with a session, which is closed afterwards."""
    client = served.client(name)
    client.open()
    yield client
    client.http.delete(session_path(client.session))


def test_a_kernel_is_judged_and_its_result_said_until_it_is_acknowledged(served: Served) -> None:
    with opened(served) as client:
        assert client.put("first", "any").status_code == 202
        (result,) = client.results()

        assert (result.number, result.key, result.gate) == (1, "first", False)
        assert result.evaluation.outcome is Outcome.OK
        assert client.results() == (result,)
        assert client.results(after=1, wait=0) == ()
        assert client.results(after=0, wait=0) == ()


def test_a_session_says_what_judges_in_it(served: Served) -> None:
    client = served.client()
    answer = client.http.post(SESSIONS, content=encode(OpenSession({"stub": b""})))
    opening = decode(answer.content, SessionOpened)

    assert (opening.capacity, opening.source) == (2, "modelled")
    assert (opening.fingerprint, opening.remarks) == ({"device": "stub"}, ("A stub judged.",))
    status = decode(client.http.get(session_path(opening.session)).content, SessionStatus)
    assert status == SessionStatus(2, 0, 0, 0)
    server = decode(client.http.get(STATUS).content, ServerStatus)
    assert (server.device, server.fingerprint, server.sessions) == ("model", {"device": "stub"}, 1)
    assert client.http.delete(session_path(opening.session)).status_code == 204
    assert client.http.get(session_path(opening.session)).status_code == 404


def test_a_session_whose_process_has_no_room_at_the_moment_gives_it_a_kernel_all_the_same(
    served: Served,
) -> None:
    client = served.client()
    client.open("be full")
    assert decode(client.http.get(session_path(client.session)).content, SessionStatus).capacity == 1
    client.put("key", "any")
    assert client.judged(1)[0].evaluation.ok
    client.http.delete(session_path(client.session))


def test_one_key_put_by_many_at_once_is_judged_once(served: Served) -> None:
    with opened(served) as client, ThreadPoolExecutor(20) as threads:
        statuses = Counter(threads.map(lambda _: client.put("key", "sleep 0.1").status_code, range(100)))
        (result,) = client.judged(1)

        assert statuses == {202: 1, 200: 99}
        assert result.evaluation.message == "judged 1"
        assert client.put("key", "sleep 0.1").status_code == 200
        assert client.results(after=1, wait=0.3) == ()


def test_a_key_holds_one_kernel(served: Served) -> None:
    with opened(served) as client:
        client.put("key", "this")

        assert client.put("key", "that").status_code == 409
        assert client.put_gate("key", "this", "this").status_code == 409


def test_a_last_gate_comes_back_as_a_result(served: Served) -> None:
    with opened(served) as client:
        client.put("a", "sleep 0.05")
        client.put_gate("gate", "fast", "slow")
        client.put("b", "sleep 0.05")
        found = {result.key: result for result in client.judged(3)}

        assert found["gate"].gate
        assert found["gate"].evaluation.message == "gate: fast beside slow"
        assert not found["a"].gate


def test_nothing_holds_a_place_while_a_last_gate_keeps_its_session_busy(served: Served) -> None:
    with opened(served) as client:
        client.put_gate("gate", "sleep 0.5", "slow")
        client.put("waits", "any")
        time.sleep(0.1)
        status = decode(client.http.get(session_path(client.session)).content, SessionStatus)

        assert (status.running, status.queued) == (1, 1)
        assert [result.key for result in client.judged(2)] == ["gate", "waits"]


def test_numbers_that_json_lacks_come_back_as_a_journal_keeps_them(served: Served) -> None:
    with opened(served) as client:
        client.put("key", "inf")
        (result,) = client.judged(1)

    assert result.evaluation.counters == {"x": math.copysign(sys.float_info.max, 1)}


def test_large_results_come_in_several_answers(served: Served) -> None:
    with opened(served) as client:
        for number in range(5):
            client.put(str(number), f"long {2 << 20}")
        found = client.judged(5)

    assert [result.number for result in found] == [1, 2, 3, 4, 5]


def test_a_session_is_its_clients_own(served: Served) -> None:
    with opened(served) as client:
        stranger = served.client("bob")
        stranger.session = client.session

        assert stranger.put("key", "any").status_code == 404
        assert stranger.http.get(session_path(client.session)).status_code == 404
        assert stranger.http.delete(session_path(client.session)).status_code == 404


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ("bad task", 422, "The stub can't use this task."),
        ("bad machine", 503, "The stub has no machine."),
        ("die", 500, "The process of the session exited with status 3 while it opened."),
        ("be killed", 500, "The process of the session was killed by SIGKILL while it opened."),
    ],
)
def test_a_task_that_cannot_be_opened_is_refused_with_the_reason(
    served: Served, words: str, status: int, sentence: str
) -> None:
    answer = served.client().http.post(SESSIONS, content=encode(OpenSession({"stub": words.encode()})))

    assert answer.status_code == status
    assert decode(answer.content, Problem).sentence == sentence
    assert "retry-after" not in answer.headers


def test_a_defect_is_told_in_a_sentence_and_logged_whole(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    answer = served.client().http.post(SESSIONS, content=encode(OpenSession({"stub": b"have a defect"})))

    assert answer.status_code == 500
    said = decode(answer.content, Problem).sentence
    problem = "RuntimeError: No \N{REPLACEMENT CHARACTER}[31msuch thing"
    assert said == f"The process of the session exited with status 1 while it opened: {problem}."
    assert "Traceback" in caplog.text and "stub.py" in caplog.text
    assert "\x1b" not in caplog.text


def test_a_process_that_cannot_be_started_is_no_fault_of_a_task(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Too many processes")

    client = serve(idle_seconds=0.1).client()
    client.open()
    while decode(client.http.get(STATUS).content, ServerStatus).sessions:
        time.sleep(0.05)
    monkeypatch.setattr("mctskernel.serving.orphans.start", refuse)
    sentence = "The process of the session can't be started: Too many processes."
    answer = client.http.post(SESSIONS, content=encode(OpenSession({"stub": b""})))
    assert (answer.status_code, decode(answer.content, Problem).sentence) == (500, sentence)
    client.put("key", "any")
    answer = client.http.get(f"{session_path(client.session)}/results?wait=10")
    assert (answer.status_code, decode(answer.content, Problem).sentence) == (503, sentence)


@pytest.mark.parametrize(
    "request_",
    [
        OpenSession({"../stub": b""}),
        OpenSession({"/etc/stub": b""}),
        OpenSession({"stub": b"", "stub/inner": b""}),
        OpenSession({f"{n}": b"" for n in range(100)}),
        OpenSession({"stub": b""}, architecture="/etc/passwd"),
        OpenSession({"stub": b""}, architecture="my_gpu.toml"),
    ],
)
def test_a_task_that_reaches_elsewhere_is_refused(served: Served, request_: OpenSession) -> None:
    answer = served.client().http.post(SESSIONS, content=encode(request_))

    assert answer.status_code == 422
    assert decode(answer.content, Problem).sentence


def test_a_lost_process_costs_what_killed_it_and_nothing_else(serve: Serve) -> None:
    served = serve()
    with opened(served) as client:
        for number in range(4):
            client.put(f"before{number}", "sleep 0.05")
        client.put("bad", "die")
        for number in range(4):
            client.put(f"after{number}", "sleep 0.05")
        found = {result.key: result.evaluation for result in client.judged(9)}

        assert client.results(after=9, wait=0.1) == ()
    crashed = found.pop("bad")
    assert (crashed.outcome, crashed.guard) == (Outcome.CRASH, Guard.SEPARATE_PROCESS)
    assert "was killed by SIGKILL" in crashed.message
    assert len(found) == 8
    assert all(evaluation.ok for evaluation in found.values())
    assert any("lost its process" in sentence for sentence in served.said)


def test_a_broken_machine_is_told_after_what_it_could_still_judge(serve: Serve) -> None:
    with opened(serve(workers=1)) as client:
        client.put("good", "any")
        client.put("bad", "break")
        (result,) = client.judged(1)
        assert result.key == "good"

        answer = client.http.get(f"{session_path(client.session)}/results?after=1&wait=20")

        assert answer.status_code == 503
        assert decode(answer.content, Problem).sentence == "The stub is broken."
        assert "retry-after" not in answer.headers
        assert client.put("next", "any").status_code == 503


def test_a_stuck_kernel_costs_its_process(serve: Serve) -> None:
    with opened(serve(stalled_seconds=0.5)) as client:
        client.put("stuck", "sleep 60")
        (result,) = client.judged(1)

    assert result.evaluation.outcome is Outcome.CRASH
    assert "took more than its limit of 0.5 s" in result.evaluation.message


def test_an_idle_session_rests_and_is_opened_again_by_the_next_kernel(serve: Serve) -> None:
    client = serve(idle_seconds=0.2).client()
    client.open()
    deadline = time.monotonic() + 10
    while decode(client.http.get(STATUS).content, ServerStatus).sessions:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    assert client.put("key", "any").status_code == 202
    assert client.judged(1)[0].evaluation.ok


def test_places_go_to_who_has_work(serve: Serve) -> None:
    served = serve(sessions=1)
    busy, other = served.client("alice"), served.client("bob")
    busy.open()
    busy.put("long", "sleep 0.5")
    refused = other.http.post(SESSIONS, content=encode(OpenSession({"stub": b""})))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1

    busy.judged(1)
    other.open()
    assert busy.put("again", "any").status_code == 202
    assert busy.results(after=1)[0].evaluation.ok


def test_a_client_keeps_so_many_sessions(serve: Serve) -> None:
    client = serve(client_kept=1).client()
    client.open()

    assert client.http.post(SESSIONS, content=encode(OpenSession({"stub": b""}))).status_code == 429


def test_a_full_queue_takes_more_once_results_are_acknowledged(serve: Serve) -> None:
    served = serve(client_queue=3, queue=4)
    client, other = served.client("alice"), served.client("bob")
    client.open()
    other.open()
    for number in range(3):
        assert client.put(str(number), "sleep 0.3").status_code == 202
    full = client.put("4", "any")
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert client.put("0", "sleep 0.3").status_code == 200
    assert other.put("0", "any").status_code == 202
    assert other.put("1", "any").status_code == 429

    client.judged(3)
    client.results(after=3, wait=0)
    assert client.put("4", "any").status_code == 202


def test_results_that_nobody_acknowledges_are_bounded_by_their_size(serve: Serve) -> None:
    client = serve(result_bytes=1000).client()
    client.open()
    client.put("long", "long 2000")
    client.results()

    refused = client.put("next", "any")
    assert refused.status_code == 429
    assert "acknowledge" in decode(refused.content, Problem).sentence
    client.results(after=1, wait=0)
    assert client.put("next", "any").status_code == 202


def test_a_modest_client_does_not_wait_for_a_greedy_one(serve: Serve) -> None:
    served = serve(workers=1)
    greedy, modest = served.client("alice"), served.client("bob")
    greedy.open()
    modest.open()
    greedy.put("first", "sleep 1.5")
    for number in range(20):
        greedy.put(str(number), f"sleep 0.05 {number}")
    for number in range(5):
        modest.put(str(number), f"sleep 0.05 {number}")
    modest.judged(5)

    status = decode(greedy.http.get(session_path(greedy.session)).content, SessionStatus)
    assert status.finished < 15
    assert len(greedy.judged(21)) == 21


def test_what_is_being_judged_is_finished_at_the_end_and_nothing_more(serve: Serve) -> None:
    served = serve(workers=1)
    client = served.client()
    client.open()
    client.put("running", "sleep 0.5")
    client.put("waiting", "any")
    time.sleep(0.2)
    served.server.stop()
    time.sleep(0.2)

    refused = client.put("late", "any")
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert client.http.post(SESSIONS, content=encode(OpenSession({}))).status_code == 503
    assert [result.key for result in client.judged(1)] == ["running"]
    assert client.http.get(f"{session_path(client.session)}/results?after=1&wait=5").status_code == 503
    served.thread.join(10)
    assert not served.thread.is_alive()


def test_nothing_is_left_behind(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    served = serve()
    client = served.client()
    client.open()
    client.put("key", "sleep 30")
    assert list(tmp_path.iterdir())
    served.server.stop()
    served.server.stop()
    served.thread.join(10)

    assert list(tmp_path.iterdir()) == []


def test_a_task_sees_neither_secrets_nor_other_tasks(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCTSKERNEL_TOKEN", "a-secret")
    monkeypatch.setenv("SOMETHING", "alice-secret")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client = serve().client()
    client.open()
    other = served_folder(tmp_path)
    client.open()
    client.put("environment", "environment")
    client.put("others", f"read {other}")
    found = {result.key: result.evaluation.message for result in client.judged(2)}

    assert "secret" not in found["environment"]
    try:
        landlock.abilities()
    except RefusedByKernelError:
        pytest.skip("this kernel has no Landlock")
    assert found["others"] == "PermissionError"


def served_folder(folder: Path) -> Path:
    """The file of the only task that a server keeps."""
    (path,) = folder.glob("mctskernel-serve-*/*/task/stub")
    return path
