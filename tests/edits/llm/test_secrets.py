"""A key, and where the user's files lie, are written nowhere, whatever a server says."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path

import msgspec
import pytest

from mctskernel.core.backoff import Backoff
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.edits.llm.client import open_client
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.options import LLMOptions, ModelError
from tests.edits.llm.loopback import Behaviour, Handler, completion, fails, replies, serving

KEY = "sk-proj/abc+DEF123_456-789"
QUOTED = "sk-proj%2Fabc%2BDEF123_456-789"
PROMPT = "The kernel that nobody may see: __global__ void secret_sauce(float* x) { x[0] = 42; }"


@pytest.fixture(autouse=True)
def a_key_and_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f"  {KEY}\n")
    monkeypatch.setenv("HOME", "/home/ada")


def ask(*behaviours: Behaviour) -> tuple[Exchange, str | None]:
    """An exchange, and the key that the server got."""
    with serving(*behaviours) as server:
        options = LLMOptions("m", base_url=server.url, key_variable="SOME_KEY", retries=1)
        assert KEY not in msgspec.json.encode(options).decode()
        with open_client(options, None, Backoff(first=0.01)) as client:
            assert KEY not in repr(client) and KEY not in repr(options)
            exchange = client.complete(Call(Purpose.PROPOSE, (Message("user", PROMPT),)))
        return exchange, server.received[0].headers["authorization"]


def echo_in_reply(handler: Handler) -> None:
    said = f"{KEY} {QUOTED} /home/ada/kernels/a.cu http://ada:pass@host/v1 n/home/ada/x"
    handler.send(json.dumps(completion(said)).encode())


def echo_in_error(handler: Handler) -> None:
    said = f"bad {KEY}, from /home/ada/kernels at http://ada:pass@host/v1"
    handler.send(json.dumps({"error": {"message": said}}).encode(), 500)


def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    exchange, sent = ask(echo_in_reply)
    assert sent == f"Bearer {KEY}"
    assert exchange.reply == "[key] [key] ~/kernels/a.cu http://host/v1 n/home/ada/x"
    assert KEY not in repr(exchange)
    assert KEY not in caplog.text


def test_an_error_is_quoted_without_secrets() -> None:
    exchange, _ = ask(echo_in_error)
    assert "bad [key], from ~/kernels at http://host/v1" in exchange.problem


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_prompt_that_an_error_quotes_is_left_out(status: int) -> None:
    exchange, _ = ask(fails(status, f"can't read {PROMPT!r}"))
    assert "secret_sauce" not in exchange.problem
    assert str(status) in exchange.problem


def test_an_exception_holds_neither_the_key_nor_a_servers_words() -> None:
    with pytest.raises(ModelError) as raised:
        ask(fails(401, f"Incorrect API key provided: {KEY}"))
    assert KEY not in "".join(traceback.format_exception(raised.value))
    assert "SOME_KEY" in str(raised.value)


@pytest.mark.parametrize("key", ["sk-abc\ndef", "sk-ключ", "my key", "sk-\x00"])
def test_what_can_be_no_key_is_refused_unsaid(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"SOME_KEY": key})
    with pytest.raises(ModelError) as raised:
        open_client(LLMOptions("m", base_url="http://localhost:1/v1", key_variable="SOME_KEY"))
    assert key not in str(raised.value)


@pytest.mark.parametrize("placeholder", ["EMPTY", "x", "none"])
def test_a_placeholder_is_no_secret(placeholder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", placeholder)
    exchange, _ = ask(replies("x is EMPTY, none is left"))
    assert exchange.reply == "x is EMPTY, none is left"


@pytest.mark.parametrize("home", ["/", "", "/stride"])
def test_sources_are_not_taken_for_paths(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    source = "out[i] = n/stride + (a)/stride/2; // see https://example.org/a"
    assert ask(replies(source))[0].reply == source


@pytest.mark.parametrize(
    "url",
    [
        "http://ada:pass@host/v1",
        "https://host/v1?api-key=abc",
        "host/v1",
        "ftp://host/v1",
        "http://",
        "http://[/v1",
    ],
)
def test_a_url_that_a_run_may_not_keep_is_refused_unsaid(url: str) -> None:
    with pytest.raises(ModelError) as raised:
        LLMOptions("m", base_url=url)
    assert not {"pass", "abc"} & set(str(raised.value).replace(":", " ").split())


def test_a_key_in_place_of_its_variables_name_is_refused_unsaid() -> None:
    with pytest.raises(ModelError) as raised:
        LLMOptions("m", key_variable=KEY)
    assert KEY not in str(raised.value)


def test_a_folder_that_cannot_be_used_is_named_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as raised:
        open_client(LLMOptions("m", base_url="http://localhost:1/v1", prices=str(tmp_path / "prices.toml")))
    assert "prices.toml" in str(raised.value) and str(tmp_path) not in str(raised.value)
