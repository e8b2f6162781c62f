"""Calls to a server that misbehaves as real ones do: each returns as one exchange, paid within the budget."""

import json
import logging
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import openai
import pytest

from mctskernel.core.proposer import Exchange, Loss, Purpose
from mctskernel.edits.llm.client import Client
from mctskernel.edits.llm.model import Call, LLMOptions, Message, ModelError, Price, Tokens
from tests.edits.llm import loopback
from tests.edits.llm.loopback import Behaviour, Handler, Server, fails, replies, says, serving

SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
CALL = Call(
    Purpose.PROPOSE,
    (Message("system", "You make kernels faster."), Message("user", "Here is one.")),
    schema=SCHEMA,
    expert="memory",
)
RETRIES = 2
KEY = "sk-proj/abc+DEF123_456-789"


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries begin at once; there is a key and a home folder."""
    monkeypatch.setattr(openai.AsyncOpenAI, "_calculate_retry_timeout", lambda *_: 0.0)
    monkeypatch.setenv("SOME_KEY", f"  {KEY}\n")
    monkeypatch.setenv("HOME", "/home/ada")


@contextmanager
def asking(
    *behaviours: Behaviour, dollars: float | None = None, **options: Any
) -> Iterator[tuple[Client, Server]]:
    limits = {"retries": RETRIES, "max_output_tokens": 1000, "key_variable": "SOME_KEY", "temperature": 0.5}
    with serving(*behaviours) as server:
        configured = LLMOptions("some-model", base_url=server.url, **{**limits, **options})
        with closing(Client(configured, dollars)) as client:
            yield client, server


def exchange_with(*behaviours: Behaviour, call: Call = CALL, **options: Any) -> tuple[Exchange, Server]:
    with asking(*behaviours, **options) as (client, server):
        return client.complete(call), server


def after_one(behaviour: Behaviour, **options: Any) -> tuple[Exchange, Server]:
    """The second exchange with a server whose first reply was good: a failure is then not the user's fault."""
    with asking(replies(), behaviour, **options) as (client, server):
        client.complete(CALL)
        return client.complete(CALL), server


def test_a_reply_is_recorded_with_what_was_asked_and_what_it_took() -> None:
    exchange, server = exchange_with(replies("an edit"))
    assert (exchange.reply, exchange.problem, exchange.loss) == ("an edit", "", None)
    assert (exchange.input_tokens, exchange.output_tokens, exchange.estimated) == (120, 30, False)
    assert (exchange.purpose, exchange.expert, exchange.model) == (Purpose.PROPOSE, "memory", "some-model")
    assert (exchange.requests, exchange.recorded) == (1, False)
    sent = server.received[0].body
    assert sent["messages"] == json.loads(exchange.prompt)
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("some-model", 0.5, 1000)


TRANSIENT: dict[str, Behaviour] = {
    "429 with Retry-After": fails(429, retry_after="0.01"),
    "500": fails(500),
    "reset": loopback.resets,
    "cut off in the middle": loopback.cuts_off,
}


@pytest.mark.parametrize("behaviour", TRANSIENT.values(), ids=TRANSIENT)
def test_a_transient_failure_is_retried_and_given_up_in_the_end(behaviour: Behaviour) -> None:
    exchange, server = exchange_with(behaviour)
    assert exchange.requests == len(server.received) == RETRIES + 1
    assert (exchange.reply, exchange.loss) == ("", Loss.NO_REPLY)
    assert f"after {RETRIES + 1} requests" in exchange.problem
    exchange, server = exchange_with(behaviour, replies("an edit"))
    assert (exchange.reply, exchange.problem, exchange.requests) == ("an edit", "", 2)


FINAL: dict[str, tuple[Behaviour, Loss]] = {
    "redirection": (fails(302, location="http://127.0.0.1:1/v1/chat/completions"), Loss.NO_REPLY),
    "come back in an hour": (fails(429, retry_after="3600"), Loss.NO_REPLY),
    "too long a prompt": (fails(400, "maximum context length is 8192 tokens"), Loss.NO_REPLY),
    "a page": (says(b"<!DOCTYPE html><html>Sign in</html>", content_type="text/html"), Loss.NO_REPLY),
    "an error with status 200": (says(b'{"error": {"message": "overloaded"}}'), Loss.NO_REPLY),
    "other JSON": (says(b'{"choices": [{"message": 3}]}'), Loss.NO_REPLY),
    "deep nesting": (says(b"[" * 200_000), Loss.NO_REPLY),
}


@pytest.mark.parametrize(("behaviour", "loss"), FINAL.values(), ids=FINAL)
def test_other_failures_are_a_problem_in_one_sentence(behaviour: Behaviour, loss: Loss) -> None:
    exchange, server = after_one(behaviour)
    assert (exchange.requests, len(server.received)) == (1, 2)
    assert (exchange.reply, exchange.loss) == ("", loss)
    assert exchange.problem.startswith("127.0.0.1 ")
    assert exchange.problem.endswith(".")


READ: dict[str, tuple[Behaviour, str, Loss | None]] = {
    "prose": (replies("Sure! " * 30_000), "Sure! " * 30_000, None),
    "invalid UTF-8": (says(b'{"choices": [{"message": {"content": "a\xff"}}]}'), "a\ufffd", None),
    "parts": (replies([{"type": "text", "text": "an "}, {"type": "text", "text": "edit"}]), "an edit", None),
    "refusal": (replies(None, refusal="No."), "No.", Loss.REFUSAL),
    "limit of tokens": (replies("an ed", finish="length"), "an ed", Loss.CUT_OFF),
    "blank": (replies(" \n"), "", Loss.EMPTY),
}


@pytest.mark.parametrize(("behaviour", "reply", "loss"), READ.values(), ids=READ)
def test_a_reply_is_read_as_it_is(behaviour: Behaviour, reply: str, loss: Loss | None) -> None:
    exchange, _ = exchange_with(behaviour)
    assert (exchange.reply, exchange.loss, exchange.requests) == (reply, loss, 1)
    assert bool(exchange.problem) == (loss is not None)


@pytest.mark.parametrize("behaviour", [loopback.hangs, loopback.drips], ids=["hang", "slow drip"])
def test_a_call_is_bounded_in_time(behaviour: Behaviour) -> None:
    exchange, _ = exchange_with(behaviour, call_seconds=0.2)
    assert (exchange.loss, exchange.estimated) == (Loss.NO_REPLY, True)
    assert "no reply within 0.2 s" in exchange.problem


def test_closing_ends_calls_at_once() -> None:
    with asking(loopback.hangs) as (client, server):
        ended: list[Exchange] = []
        threads = [threading.Thread(target=lambda: ended.append(client.complete(CALL))) for _ in range(3)]
        for thread in threads:
            thread.start()
        server.wait_for(3)
        client.close()
        for thread in threads:
            thread.join()
        assert all("the search stops" in each.problem for each in ended)
        assert client.complete(CALL).requests == 0


def test_ctrl_c_ends_a_call_and_leaves_the_server() -> None:
    left, waiting = threading.Event(), threading.get_ident()

    def interrupts(handler: Handler) -> None:
        signal.pthread_kill(waiting, signal.SIGINT)
        if not handler.connection.recv(1):
            left.set()
        handler.close_connection = True

    with asking(interrupts) as (client, _):
        with pytest.raises(KeyboardInterrupt):
            client.complete(CALL)
        assert left.wait(20)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "refuses the key in SOME_KEY"), (404, "no model some-model"), (400, "--reply-format")],
)
def test_a_first_request_that_is_refused_says_which_option_to_change(status: int, words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        exchange_with(fails(status, f"refused: {KEY}"))
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_a_missing_key_is_said() -> None:
    with pytest.raises(ModelError, match="NO_SUCH_KEY"):
        exchange_with(fails(401), key_variable="NO_SUCH_KEY")
    with pytest.raises(ModelError, match="NO_SUCH_KEY"):
        Client(LLMOptions("gpt-4.1", key_variable="NO_SUCH_KEY"))


# --- what is written down


def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    quoted = "sk-proj%2Fabc%2BDEF123_456-789"
    echo = f"{KEY} {quoted} /home/ada/kernels/a.cu http://ada:pass@host/v1 n/home/ada/x"
    with asking(replies(echo), fails(500, echo)) as (client, server):
        assert KEY not in repr(client)
        exchange, failure = client.complete(CALL), client.complete(CALL)
    assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert exchange.reply == "[key] [key] ~/kernels/a.cu http://host/v1 n/home/ada/x"
    assert "[key] [key] ~/kernels" in failure.problem
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["sk-abc\ndef", "sk-ключ", "my key"])
def test_a_value_that_can_be_no_key_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(ModelError) as raised:
        Client(LLMOptions("m", base_url="http://localhost:1/v1", key_variable="SOME_KEY"))
    assert key not in str(raised.value)


@pytest.mark.parametrize("url", ["http://ada:pass@host/v1", "https://host/v1?api-key=abc", "http://[/v1"])
def test_a_url_that_a_run_may_not_keep_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ModelError) as raised:
        LLMOptions("m", base_url=url)
    assert not {"pass", "abc"} & set(str(raised.value).replace(":", " ").split())


def test_a_key_in_place_of_its_variables_name_is_refused_without_showing_it() -> None:
    with pytest.raises(ModelError) as raised:
        LLMOptions("m", key_variable=KEY)
    assert KEY not in str(raised.value)


# --- what calls cost

PAID = Call(Purpose.PROPOSE, (Message("user", "x" * 169),))
"""100 tokens at the most, the JSON around them included."""
PRICE = {"price": (1000.0, 10000.0), "max_output_tokens": 50}


def test_tokens_are_paid_by_their_price() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    exchange, _ = exchange_with(replies(usage=usage), call=PAID, **PRICE)
    assert exchange.dollars == pytest.approx((100 * 1000 + 20 * 10000) / 1e6)
    assert Price(1.0, 1.0, cached=0.0).dollars(Tokens(10, 0, 20)) == 0.0
    assert LLMOptions("gpt-4.1").known_price == Price(2.0, 8.0, cached=0.5)
    assert LLMOptions("unknown").known_price is None


def test_no_request_begins_that_could_cost_more_than_is_left() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 40}
    with asking(replies(usage=usage), dollars=1.3, **PRICE) as (client, _):
        exchanges = [client.complete(PAID) for _ in range(4)]
    assert [exchange.loss for exchange in exchanges] == [None, None, Loss.OVER_BUDGET, Loss.OVER_BUDGET]
    assert sum(exchange.dollars for exchange in exchanges) == pytest.approx(1.0)
    assert exchanges[2].requests == 0
    assert "$0.6000" in exchanges[2].problem and "$0.3000" in exchanges[2].problem


def test_a_model_without_a_price_is_refused_where_money_is_limited() -> None:
    with pytest.raises(ModelError, match="--price"), asking(replies(), dollars=1.0):
        pass
    exchange, _ = exchange_with(replies(), dollars=0.01, price=(0.0, 0.0))
    assert (exchange.loss, exchange.dollars) == (None, 0.0)
