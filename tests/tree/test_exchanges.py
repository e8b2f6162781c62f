"""What models were asked and said is kept with the reply that came of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.proposer import Dropped, Exchange, Loss, Proposals, Purpose
from mctskernel.tree.blobs import MemoryBlobs, get_exchange, put_exchange
from mctskernel.tree.events import Proposed
from mctskernel.tree.fold import fold
from mctskernel.tree.strategies.strategy import Propose
from tests.tree.by_hand import Grown

TEXTS = st.text(st.characters(codec="utf-8"))

EXCHANGES = st.builds(
    Exchange,
    purpose=st.sampled_from(Purpose),
    model=TEXTS,
    prompt=TEXTS,
    reply=TEXTS,
    expert=TEXTS,
    problem=TEXTS,
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    dollars=st.floats(0, 100),
    seconds=st.floats(0, 1000),
    recorded=st.booleans(),
)


@given(EXCHANGES)
def test_an_exchange_comes_back_as_it_was(exchange: Exchange) -> None:
    blobs = MemoryBlobs()
    assert get_exchange(blobs, put_exchange(blobs, exchange)) == exchange


def test_texts_that_cannot_be_stored_are_stored_as_far_as_they_can() -> None:
    blobs = MemoryBlobs()
    kept = get_exchange(
        blobs, put_exchange(blobs, Exchange(Purpose.JUDGE, "m", "lone \ud800", "half \udfff"))
    )
    assert kept.prompt.startswith("lone")
    assert kept.reply.startswith("half")


def test_a_reply_is_journalled_with_its_exchanges_losses_and_cost() -> None:
    grown = Grown()
    exchanges = tuple(Exchange(Purpose.PROPOSE, "m", "[]", "x", dollars=cost) for cost in (0.25, 0.5))
    dropped = (Dropped(Loss.AMBIGUOUS, "It fits twice."),)
    grown.search.proposed(Propose((0,)), Proposals((), dollars=1.0, exchanges=exchanges, dropped=dropped))
    (event,) = (each for each in grown.journal.events if isinstance(each, Proposed))
    assert event.dollars == 1.75 == grown.tree.dollars
    assert [each.loss for each in event.dropped] == [Loss.AMBIGUOUS]
    assert [get_exchange(grown.blobs, each) for each in event.exchanges] == list(exchanges)
    assert fold(grown.journal.events).dollars == 1.75


def test_silence_is_no_reply_about_the_node() -> None:
    for loss, is_ready in ((Loss.NO_REPLY, True), (Loss.REFUSAL, False)):
        grown = Grown()
        grown.search.proposed(Propose((0,)), Proposals((), dropped=(Dropped(loss, "."),)))
        assert grown.tree.nodes[0].ready is is_ready
        assert fold(grown.journal.events).nodes[0].ready is is_ready
