"""What calls cost, and that no request begins that a budget might not pay."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.backoff import Backoff
from mctskernel.core.proposer import Dropped, Exchange, Loss, Proposals, Purpose
from mctskernel.edits.llm.allowance import Allowance
from mctskernel.edits.llm.client import open_client
from mctskernel.edits.llm.model import Call, Message
from mctskernel.edits.llm.options import LLMOptions, ModelError
from mctskernel.edits.llm.prices import Price, Tokens, load_prices
from tests.edits.llm.loopback import Behaviour, Handler, fails, replies, resets, serving

PRICES = '["m"]\ninput = 1000.0\noutput = 10000.0\ncached_input = 100.0\n'
CALL = Call(Purpose.PROPOSE, (Message("user", "x" * 184),))
"""100 tokens at the most."""
WORST = 0.1 + 0.5


def ask(
    tmp_path: Path, *behaviours: Behaviour, calls: int = 1, dollars: float | None = None, prices: str = PRICES
) -> list[Exchange]:
    """Calls one after the other, with replies of up to 50 tokens."""
    file = tmp_path / "prices.toml"
    file.write_text(prices)
    with serving(*behaviours) as server:
        options = LLMOptions("m", base_url=server.url, prices=str(file), max_output_tokens=50, retries=2)
        with open_client(options, dollars, Backoff(first=0.01)) as client:
            exchanges = [client.complete(CALL) for _ in range(calls)]
        assert len(server.received) == sum(exchange.requests for exchange in exchanges)
    return exchanges


def test_tokens_are_paid_by_their_price(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
    (exchange,) = ask(tmp_path, replies(usage=usage))
    assert exchange.dollars == pytest.approx((60 * 1000 + 40 * 100 + 20 * 10000) / 1e6)


def test_requests_that_a_server_refused_cost_nothing(tmp_path: Path) -> None:
    (exchange,) = ask(tmp_path, fails(500))
    assert (exchange.requests, exchange.dollars, exchange.estimated) == (3, 0.0, False)


def test_a_reply_that_was_lost_counts_with_the_most_that_it_may_have_cost(tmp_path: Path) -> None:
    (exchange,) = ask(tmp_path, resets)
    assert exchange.dollars == pytest.approx(3 * WORST)
    assert exchange.estimated


def test_no_request_begins_that_could_cost_more_than_is_left(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 40}
    exchanges = ask(tmp_path, replies(usage=usage), calls=4, dollars=1.3)
    assert [exchange.loss for exchange in exchanges] == [None, None, Loss.OVER_BUDGET, Loss.OVER_BUDGET]
    assert sum(exchange.dollars for exchange in exchanges) == pytest.approx(1.0)
    assert exchanges[2].requests == 0
    assert "$0.6000" in exchanges[2].problem and "$0.3000" in exchanges[2].problem


def test_a_reply_that_nobody_could_pay_says_nothing_about_its_node() -> None:
    assert Proposals((), dropped=(Dropped(Loss.OVER_BUDGET, "A request could cost too much."),)).is_silent


def test_retries_are_paid_too(tmp_path: Path) -> None:
    (exchange,) = ask(tmp_path, resets, dollars=1.5)
    assert (exchange.requests, exchange.loss) == (2, Loss.OVER_BUDGET)


def test_a_call_waits_for_money_that_is_held_for_others(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    gate = threading.Event()

    def waits(handler: Handler) -> None:
        gate.wait(20)
        replies(usage={"prompt_tokens": 1, "completion_tokens": 1})(handler)

    with serving(waits) as server:
        options = LLMOptions("m", base_url=server.url, prices=str(file), max_output_tokens=50)
        with open_client(options, 1.5 * WORST) as client, ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(client.complete, CALL) for _ in range(4)]
            while not server.received:
                time.sleep(0.01)
            time.sleep(0.1)
            assert len(server.received) == 1, "two could cost more than there is"
            gate.set()
            assert [call.result().loss for call in calls] == [None] * 4


def test_a_model_without_a_price_is_refused_where_money_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'\["m"\]'):
        ask(tmp_path, replies(), dollars=1.0, prices='["other"]\ninput = 1\noutput = 1\n')
    assert ask(tmp_path, replies(), prices="")[0].dollars == 0.0


def test_a_server_of_ones_own_costs_nothing(tmp_path: Path) -> None:
    (exchange,) = ask(tmp_path, replies(), dollars=0.01, prices='["*"]\ninput = 0\noutput = 0\n')
    assert (exchange.loss, exchange.dollars) == (None, 0.0)


def test_a_name_comes_before_a_pattern_and_ones_own_prices_before_the_built_in(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        '["gpt-*"]\ninput = 1\noutput = 1\n["gpt-4.1"]\ninput = 7\noutput = 7\n["*"]\ninput = 2\noutput = 2\n'
    )
    prices = load_prices(file)
    assert prices.of("gpt-4.1") == Price(7, 7)
    assert prices.of("gpt-new") == Price(1, 1)
    assert prices.of("qwen") == Price(2, 2)
    assert load_prices().of("qwen") is None
    assert load_prices().of("gpt-4.1") is not None


@pytest.mark.parametrize(
    "text",
    ['["m"]\ninput = 1\n', '["m"]\ninput = -1\noutput = 1\n', '["m"]\ninput = nan\noutput = 1\n', "m = 3\n", "[",
     '["m"]\ninput = 1\noutput = 1\noutptu = 2\n', '["m"]\ninput = "1"\noutput = 1\n'],
)  # fmt: skip
def test_a_file_that_holds_no_prices_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(ModelError, match=r"prices\.toml"):
        load_prices(file)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), max_size=30), st.floats(0, 10))
def test_what_is_paid_never_passes_the_limit_if_no_call_costs_more_than_its_most(
    calls: list[tuple[float, float]], limit: float
) -> None:
    allowance, paid = Allowance(limit), []

    async def request(most: float, share: float) -> None:
        if await allowance.hold(most):
            await asyncio.sleep(0)
            paid.append(most * share)
            allowance.settle(most, paid[-1])

    async def all_at_once() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(request(*each) for each in calls))

    asyncio.run(all_at_once())
    assert math.fsum(paid) <= limit + 1e-9
    if calls and math.fsum(most for most, _ in calls) <= limit:
        assert len(paid) == len(calls), "nothing is refused that could be paid"


def test_tokens_that_a_server_counts_twice_cost_once() -> None:
    assert Price(1.0, 1.0, 0.0).dollars(Tokens(10, 0, 20)) == 0.0
