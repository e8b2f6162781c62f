"""Calls to a server that misbehaves in every way that one was seen to: each comes back as one exchange, in time."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mctskernel.core.backoff import Backoff
from mctskernel.core.proposer import Exchange, Loss, Purpose
from mctskernel.edits.llm.client import Client, open_client
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.options import LLMOptions, ModelError
from tests.edits.llm import loopback
from tests.edits.llm.loopback import Behaviour, Server, completion, fails, replies, says, serving

SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
CALL = Call(
    Purpose.PROPOSE,
    (Message("system", "You make kernels faster."), Message("user", "Here is one.")),
    schema=SCHEMA,
    expert="memory",
    temperature=0.5,
    seed=7,
)
RETRIES = 2
LIMITS = {"request_seconds": 20.0, "call_seconds": 60.0, "retries": RETRIES, "max_output_tokens": 1000}
SHORT = {"request_seconds": 1.0}
FAST = Backoff(first=0.01, longest=0.05, patience=0.5)


@contextmanager
def asking(
    *behaviours: Behaviour, dollars: float | None = None, **options: Any
) -> Iterator[tuple[Client, Server]]:
    """A client of a server that behaves so."""
    with serving(*behaviours) as server:
        configured = LLMOptions("some-model", base_url=server.url, **{**LIMITS, **options})
        with open_client(configured, dollars, FAST) as client:
            yield client, server


def exchange_with(*behaviours: Behaviour, **options: Any) -> tuple[Exchange, Server]:
    """What a call comes to."""
    with asking(*behaviours, **options) as (client, server):
        return client.complete(CALL), server


def test_a_reply_is_recorded_with_what_was_asked_and_what_it_took() -> None:
    exchange, server = exchange_with(replies("an edit"))
    assert (exchange.reply, exchange.problem, exchange.loss) == ("an edit", "", None)
    assert (exchange.input_tokens, exchange.output_tokens, exchange.estimated) == (120, 30, False)
    assert (exchange.purpose, exchange.expert, exchange.model) == (Purpose.PROPOSE, "memory", "some-model")
    assert (exchange.requests, exchange.recorded) == (1, False)
    assert exchange.seconds > 0
    assert json.loads(exchange.prompt) == [
        {"role": "system", "content": "You make kernels faster."},
        {"role": "user", "content": "Here is one."},
    ]
    sent = server.received[0].body
    assert sent["messages"] == json.loads(exchange.prompt)
    assert (sent["model"], sent["seed"], sent["temperature"], sent["max_tokens"]) == (
        "some-model",
        7,
        0.5,
        1000,
    )
    assert sent["response_format"]["json_schema"]["schema"] == SCHEMA


TRANSIENT: dict[str, Behaviour] = {
    "429": fails(429),
    "429 with Retry-After": fails(429, retry_after="0.02"),
    "429 with a date that was": fails(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
    "429 with nonsense": fails(429, retry_after="soon"),
    "500": fails(500),
    "503 as a page": lambda handler: handler.send(b"<html><body>Bad gateway</body></html>", 503),
    "500 without end": lambda handler: handler.send(b"x" * 1_000_000, 500),
    "reset": loopback.resets,
    "cut off in the middle": loopback.cuts_off,
    "a page": says(b"<!DOCTYPE html><html>Sign in</html>", content_type="text/html"),
    "an empty body": says(b""),
    "JSON that ends early": says(json.dumps(completion()).encode()[:-20]),
    "an error with status 200": says(b'{"error": {"message": "overloaded", "code": 529}}'),
    "no choice": says(b'{"choices": []}'),
    "other JSON": says(b'{"choices": [{"message": 3}]}'),
    "a list": says(b"[1, 2]"),
    "null": says(b"null"),
    "deep nesting": says(b"[" * 200_000),
    "a number without end": says(b"9" * 50_000),
}


SLOW: dict[str, Behaviour] = {"hang": loopback.hangs, "slow drip": loopback.drips}


@pytest.mark.parametrize("behaviour", SLOW.values(), ids=SLOW)
def test_what_takes_too_long_is_tried_again_and_given_up(behaviour: Behaviour) -> None:
    began = time.monotonic()
    exchange, server = exchange_with(behaviour, retries=1, **SHORT)
    assert time.monotonic() - began < 4.0
    assert exchange.requests == len(server.received) == 2
    assert (exchange.loss, exchange.estimated) == (Loss.NO_REPLY, True)
    assert "didn't answer within 1 s, after 2 requests" in exchange.problem
    exchange, _ = exchange_with(behaviour, replies("an edit"), **SHORT)
    assert (exchange.reply, exchange.requests, exchange.problem) == ("an edit", 2, "")


@pytest.mark.parametrize("behaviour", TRANSIENT.values(), ids=TRANSIENT)
def test_what_may_pass_is_tried_again_and_given_up_within_bounds(behaviour: Behaviour) -> None:
    exchange, server = exchange_with(behaviour)
    assert exchange.requests == len(server.received) == RETRIES + 1
    assert (exchange.reply, exchange.loss) == ("", Loss.NO_REPLY)
    assert f"after {RETRIES + 1} requests" in exchange.problem


@pytest.mark.parametrize("behaviour", TRANSIENT.values(), ids=TRANSIENT)
def test_what_has_passed_leaves_a_whole_exchange(behaviour: Behaviour) -> None:
    exchange, server = exchange_with(behaviour, replies("an edit"))
    assert (exchange.reply, exchange.problem, exchange.loss) == ("an edit", "", None)
    assert exchange.requests == len(server.received) == 2


FINAL: dict[str, tuple[Behaviour, Loss]] = {
    "redirection": (fails(302, location="http://127.0.0.1:1/v1/chat/completions"), Loss.NO_REPLY),
    "no money": (fails(429, code="insufficient_quota"), Loss.NO_REPLY),
    "come back in an hour": (fails(429, retry_after="3600"), Loss.NO_REPLY),
    "payment required": (fails(402), Loss.NO_REPLY),
    "too large": (fails(413), Loss.NO_REPLY),
    "too long a prompt": (fails(400, "maximum context length is 8192 tokens"), Loss.NO_REPLY),
    "bytes without end": (loopback.pours, Loss.CUT_OFF),
    "compressed": (says(b"\x1f\x8b", content_encoding="gzip"), Loss.NO_REPLY),
}


@pytest.mark.parametrize(("behaviour", "loss"), FINAL.values(), ids=FINAL)
def test_what_will_not_pass_is_not_tried_again(behaviour: Behaviour, loss: Loss) -> None:
    exchange, server = exchange_with(behaviour)
    assert exchange.requests == len(server.received) == 1
    assert (exchange.reply, exchange.loss) == ("", loss)
    assert exchange.problem.endswith(".")


READ: dict[str, tuple[Behaviour, str, Loss | None]] = {
    "prose": (replies("Sure! " * 30_000), "Sure! " * 30_000, None),
    "another language": (replies("内核更快 être ядро"), "内核更快 être ядро", None),
    "invalid UTF-8": (says(b'{"choices": [{"message": {"content": "a\xff"}}]}'), "a\ufffd", None),
    "a lone surrogate": (says(b'{"choices": [{"message": {"content": "a\\ud800"}}]}'), "a?", None),
    "parts": (replies([{"type": "text", "text": "an "}, {"type": "text", "text": "edit"}]), "an edit", None),
    "a tool call": (replies(None, tool_calls=[{"function": {"arguments": "{}"}}]), "{}", None),
    "refusal": (replies(None, refusal="No."), "No.", Loss.REFUSAL),
    "content filter": (replies("an ed", finish="content_filter"), "an ed", Loss.REFUSAL),
    "limit of tokens": (replies("an ed", finish="length"), "an ed", Loss.CUT_OFF),
    "nothing but thoughts": (replies("", finish="length"), "", Loss.CUT_OFF),
    "empty": (replies(""), "", Loss.EMPTY),
    "blank": (replies(" \n"), "", Loss.EMPTY),
    "null": (replies(None), "", Loss.EMPTY),
}


@pytest.mark.parametrize(("behaviour", "reply", "loss"), READ.values(), ids=READ)
def test_a_reply_is_read_as_it_is(behaviour: Behaviour, reply: str, loss: Loss | None) -> None:
    exchange, _ = exchange_with(behaviour)
    assert (exchange.reply, exchange.loss, exchange.requests) == (reply, loss, 1)
    assert bool(exchange.problem) == (loss is not None)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "much",
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 0, "completion_tokens": 0},
    ],
)
def test_tokens_that_no_server_counted_are_estimated(usage: object) -> None:
    exchange, _ = exchange_with(replies("x" * 300, usage=usage))
    assert exchange.estimated
    assert exchange.output_tokens == 100
    assert 10 < exchange.input_tokens < 100


def test_a_server_that_is_not_there_is_a_problem() -> None:
    with serving(replies()) as server:
        url = server.url
    with open_client(LLMOptions("m", base_url=url, **LIMITS), None, FAST) as client:
        exchange = client.complete(CALL)
    assert "could not be reached" in exchange.problem
    assert (exchange.requests, exchange.input_tokens, exchange.dollars) == (RETRIES + 1, 0, 0.0)


def test_a_name_that_resolves_to_nothing_is_a_problem() -> None:
    with open_client(LLMOptions("m", base_url="http://nowhere.invalid/v1", **LIMITS), None, FAST) as client:
        assert "nowhere.invalid" in client.complete(CALL).problem


def test_all_requests_of_a_call_together_are_bounded() -> None:
    began = time.monotonic()
    exchange, _ = exchange_with(loopback.hangs, retries=1000, request_seconds=0.6, call_seconds=1.5)
    assert time.monotonic() - began < 3.0
    assert 2 <= exchange.requests <= 3
    assert exchange.loss is Loss.NO_REPLY


def test_retry_after_is_obeyed() -> None:
    exchange, _ = exchange_with(fails(429, retry_after="0.4"), replies())
    assert exchange.reply
    assert exchange.seconds >= 0.4


REFUSED: dict[str, tuple[list[Behaviour], dict[str, object]]] = {
    "json_schema": (
        [fails(400, "response_format.type must be json_object")],
        {"response_format": {"type": "json_object"}},
    ),
    "any format": ([fails(400, param="response_format")] * 2, {"response_format": None}),
    "a seed": (
        [fails(400, "Unrecognized request argument supplied: seed")],
        {"seed": None, "temperature": 0.5},
    ),
    "temperature": ([fails(400, param="temperature")], {"temperature": None, "seed": 7}),
    "max_tokens": (
        [fails(400, "Unsupported parameter: use 'max_completion_tokens'", param="max_tokens")],
        {"max_completion_tokens": 1000, "max_tokens": None},
    ),
    "FastAPI's words": (
        [lambda handler: handler.send(b'{"detail": [{"loc": ["body", "seed"], "msg": "extra"}]}', 422)],
        {"seed": None, "temperature": 0.5},
    ),
    "something unnamed": ([fails(400, "bad request")] * 2, {"response_format": None, "seed": 7}),
    "everything": (
        [fails(400, "bad request")] * 4,
        {"response_format": None, "seed": None, "temperature": None},
    ),
}


@pytest.mark.parametrize(("refusals", "then"), REFUSED.values(), ids=REFUSED)
def test_what_a_server_refuses_is_left_out_from_then_on(
    refusals: list[Behaviour], then: dict[str, object]
) -> None:
    with asking(*refusals, replies()) as (client, server):
        first, second = client.complete(CALL), client.complete(CALL)
    assert first.reply and second.reply
    assert (first.requests, second.requests) == (len(refusals) + 1, 1)
    for request in server.received[-2:]:
        assert {name: request.body.get(name) for name in then} == then


def test_a_server_that_refuses_everything_is_not_asked_for_ever() -> None:
    exchange, server = exchange_with(fails(400, "bad request"))
    assert exchange.requests == len(server.received) == 5
    assert "400" in exchange.problem


@pytest.mark.parametrize("behaviour", [loopback.hangs, loopback.drips, fails(429, retry_after="60")])
def test_closing_ends_calls_at_once(behaviour: Behaviour) -> None:
    patient = Backoff(first=60, longest=60, patience=600)
    with serving(behaviour) as server:
        options = LLMOptions("m", base_url=server.url, max_output_tokens=1000)
        client = open_client(options, None, patient)
        ended: list[Exchange] = []
        threads = [threading.Thread(target=lambda: ended.append(client.complete(CALL))) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(server.received) < len(threads):
            time.sleep(0.01)
        began = time.monotonic()
        client.close()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 1.0
        assert [each.loss for each in ended] == [Loss.NO_REPLY] * len(threads)
        assert all("the search stops" in each.problem for each in ended)
        assert client.complete(CALL).requests == 0
        client.close()


def test_an_interrupted_call_leaves_its_server() -> None:
    left, waiting = threading.Event(), threading.get_ident()

    def listens(handler: loopback.Handler) -> None:
        signal.pthread_kill(waiting, signal.SIGINT)
        if not handler.connection.recv(1):
            left.set()
        handler.close_connection = True

    with asking(listens) as (client, _):
        with pytest.raises(KeyboardInterrupt):
            client.complete(CALL)
        assert left.wait(5.0)


def test_a_key_that_is_asked_for_and_not_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with (
        asking(fails(401), key_variable="SOME_KEY") as (client, _),
        pytest.raises(ModelError, match="SOME_KEY"),
    ):
        client.complete(CALL)
    with pytest.raises(ModelError, match="SOME_KEY"):
        open_client(LLMOptions("gpt-4.1", key_variable="SOME_KEY"))


def test_a_model_that_the_server_does_not_know_is_said() -> None:
    with asking(fails(404)) as (client, _), pytest.raises(ModelError, match="some-model"):
        client.complete(CALL)


def test_a_key_that_is_refused_later_does_not_end_the_search() -> None:
    with asking(replies(), fails(401)) as (client, _):
        client.complete(CALL)
        assert "401" in client.complete(CALL).problem


def test_a_call_may_name_another_model() -> None:
    with asking(replies()) as (client, server):
        exchange = client.complete(Call(CALL.purpose, CALL.messages, model="other"))
    assert exchange.model == server.received[0].body["model"] == "other"
    assert "response_format" not in server.received[0].body
