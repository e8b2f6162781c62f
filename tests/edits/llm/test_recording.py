"""Replies come again from a cache folder or a recorded search, without a server."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.proposer import Exchange, Loss, Purpose
from mctskernel.edits.llm import open_model
from mctskernel.edits.llm.model import Call, LLMOptions, Message, OpenModel, encode
from mctskernel.edits.llm.recording import Recorded, Recording
from tests.edits.llm.loopback import Behaviour, Server, fails, replies, serving

CALL = Call(
    Purpose.PROPOSE, (Message("user", "Make it faster."),), schema={"a": 1, "b": 2}, seed=3, expert="memory"
)


@contextmanager
def caching(server: Server, folder: Path, **options: Any) -> Iterator[OpenModel]:
    configured = LLMOptions("m", base_url=server.url, cache=str(folder), retries=0, **options)
    with closing(open_model(configured)) as model:
        yield model


def test_an_identical_call_is_answered_free_of_charge_in_a_later_search_too(tmp_path: Path) -> None:
    folder = tmp_path / "replies"
    with serving(replies("an edit")) as server:
        with caching(server, folder) as model:
            first = model.complete(CALL)
        with caching(server, folder) as model:
            again = model.complete(replace(CALL, schema={"b": 2, "a": 1}))
        assert len(server.received) == 1
    assert (again.reply, again.recorded, again.requests, again.dollars) == ("an edit", True, 0, 0.0)
    assert not first.recorded
    assert (again.prompt, again.model, again.expert) == (first.prompt, first.model, first.expert)
    assert (again.input_tokens, again.output_tokens) == (first.input_tokens, first.output_tokens)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_call_is_asked(tmp_path: Path) -> None:
    others = (
        replace(CALL, messages=(Message("user", "Make it faster!"),)),
        replace(CALL, schema=None),
        replace(CALL, model="other"),
        replace(CALL, temperature=0.1),
        replace(CALL, seed=4),
    )
    with serving(replies()) as server, caching(server, tmp_path) as model:
        model.complete(CALL)
        assert not any(model.complete(other).recorded for other in others)
    with serving(replies("two")) as server, caching(server, tmp_path) as model:
        assert model.complete(CALL).reply == "two", "another server is another model"


NOT_WHOLE: dict[str, tuple[Behaviour, Loss]] = {
    "failure": (fails(503), Loss.NO_REPLY),
    "cut off": (replies("an ed", finish="length"), Loss.CUT_OFF),
    "refusal": (replies(None, refusal="No."), Loss.REFUSAL),
}


@pytest.mark.parametrize(("behaviour", "loss"), NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_only_whole_replies_are_kept(behaviour: Behaviour, loss: Loss, tmp_path: Path) -> None:
    with serving(behaviour, replies("an edit")) as server, caching(server, tmp_path) as model:
        assert model.complete(CALL).loss is loss
        assert model.complete(CALL).reply == "an edit"


def call(text: str, subject: str = "k", expert: str = "memory", purpose: Purpose = Purpose.PROPOSE) -> Call:
    return Call(purpose, (Message("user", text),), expert=expert, subject=subject)


def recorded(asked: Call, reply: str, **details: Any) -> Recorded:
    prompt = encode(asked.messages)
    exchange = Exchange(asked.purpose, "m", prompt, reply, asked.expert, dollars=0.5, seconds=3.0)
    return Recorded(asked.subject, replace(exchange, **details))


def test_a_recorded_prompt_gets_its_reply_once() -> None:
    recording = Recording([recorded(call("a"), "to a"), recorded(call("b"), "to b")])
    found = recording.complete(call("b"))
    assert (found.reply, found.model, found.recorded, found.dollars) == ("to b", "m", True, 0.0)
    assert recording.complete(call("b")).reply == "to a", "the next about this kernel"
    assert recording.complete(call("b")).loss is Loss.NO_REPLY


CALLS = st.lists(
    st.builds(call, st.sampled_from("ab"), st.sampled_from("kl"), st.sampled_from(["", "memory"]))
)


@given(CALLS, st.integers(0, 12))
def test_a_resumed_search_gets_the_replies_that_it_would_have_got(asked: list[Call], half: int) -> None:
    tape = [recorded(each, f"reply {number}") for number, each in enumerate(asked)]
    whole = Recording(tape)
    through = [whole.complete(each) for each in asked]
    assert [each.reply for each in through] == [each.exchange.reply for each in tape]
    answered = [Recorded(each.subject, exchange) for each, exchange in zip(asked, through, strict=True)]
    resumed = Recording(tape, answered[:half])
    assert [resumed.complete(each) for each in asked[half:]] == through[half:]
