"""A recording says again what a model said, whatever else has changed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.proposer import Exchange, Loss, Purpose
from mctskernel.edits.llm.messages import encode
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.recording import Recorded, Recording


def call(text: str, subject: str = "k", expert: str = "memory", purpose: Purpose = Purpose.PROPOSE) -> Call:
    return Call(purpose, (Message("user", text),), expert=expert, subject=subject)


def recorded(asked: Call, reply: str, **details: object) -> Recorded:
    exchange = Exchange(
        asked.purpose,
        "m",
        encode(asked.messages),
        reply,
        expert=asked.expert,
        input_tokens=10,
        output_tokens=20,
        dollars=0.5,
        seconds=3.0,
    )
    return Recorded(asked.subject, replace(exchange, **details))


def test_the_same_prompt_gets_its_reply_free_of_charge() -> None:
    recording = Recording([recorded(call("a"), "to a"), recorded(call("b"), "to b")])
    found = recording.complete(call("b"))
    assert (found.reply, found.model, found.recorded) == ("to b", "m", True)
    assert (found.dollars, found.requests, found.input_tokens, found.output_tokens) == (0.0, 0, 10, 20)
    assert recording.complete(call("a")).reply == "to a"


def test_a_prompt_that_was_sent_twice_gets_both_replies_in_order() -> None:
    recording = Recording([recorded(call("a"), "first"), recorded(call("a"), "second")])
    assert [recording.complete(call("a")).reply for _ in range(2)] == ["first", "second"]


def test_other_measured_times_in_the_prompt_do_not_matter() -> None:
    recording = Recording([recorded(call("12.0 us"), "first"), recorded(call("again"), "second")])
    found = recording.complete(call("12.1 us"))
    assert found.reply == "first"
    assert "12.1 us" in found.prompt
    assert recording.complete(call("once more")).reply == "second"


def test_the_subject_the_purpose_and_the_expert_matter_where_the_prompt_is_another() -> None:
    known = call("a")
    recording = Recording([recorded(known, "to a")])
    for other in (
        call("x", subject="other"),
        call("x", expert="parallelism"),
        call("x", purpose=Purpose.MEND),
    ):
        missing = recording.complete(other)
        assert (missing.reply, missing.loss, missing.recorded) == ("", Loss.NO_REPLY, True)
        assert "no such call" in missing.problem
    assert recording.complete(call("x")).reply == "to a"


def test_nothing_is_said_more_often_than_it_was_recorded() -> None:
    recording = Recording([recorded(call("a"), "to a")])
    recording.complete(call("a"))
    assert recording.complete(call("a")).loss is Loss.NO_REPLY


def test_a_failure_is_repeated() -> None:
    lost = recorded(call("a"), "an ed", loss=Loss.CUT_OFF, problem="The reply was cut off.")
    found = Recording([lost]).complete(call("a"))
    assert (found.reply, found.loss, found.problem) == ("an ed", Loss.CUT_OFF, "The reply was cut off.")


TEXTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["k", "l"]), st.sampled_from(["", "memory"])),
    max_size=12,
)


@given(TEXTS, st.integers(0, 12))
def test_a_search_that_goes_on_gets_what_it_would_have_got(
    calls: list[tuple[str, str, str]], half: int
) -> None:
    asked = [call(*each) for each in calls]
    tape = [recorded(each, f"reply {number}") for number, each in enumerate(asked)]
    whole = Recording(tape)
    through = [whole.complete(each) for each in asked]
    assert [each.reply for each in through] == [each.exchange.reply for each in tape]
    answered = [Recorded(each.subject, exchange) for each, exchange in zip(asked, through, strict=True)][
        :half
    ]
    resumed = Recording(tape, answered)
    assert [resumed.complete(each) for each in asked[half:]] == through[half:]
