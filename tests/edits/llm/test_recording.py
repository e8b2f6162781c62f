"""Replies come again from a recorded search, without a server."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.proposer import Exchange, Loss, Purpose
from mctskernel.edits.llm.model import Call, Message, encode
from mctskernel.edits.llm.recording import Recorded, Recording


def call(text: str, subject: str = "k", expert: str = "memory", purpose: Purpose = Purpose.PROPOSE) -> Call:
    return Call(purpose, (Message("user", text),), expert=expert, subject=subject)


def recorded(asked: Call, reply: str, **details: Any) -> Recorded:
    prompt = encode(asked.messages)
    exchange = Exchange(asked.purpose, "m", prompt, reply, asked.expert, dollars=0.5, seconds=3.0)
    return Recorded(asked.subject, msgspec.structs.replace(exchange, **details))


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
