"""A model on an OpenAI-compatible server: retried within bounds, paid within a budget, ended at once."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from mctskernel.core.background import Background
from mctskernel.core.backoff import Backoff
from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.allowance import Allowance
from mctskernel.edits.llm.completion import Completion
from mctskernel.edits.llm.failures import Failure
from mctskernel.edits.llm.features import Features, without_what_was_refused
from mctskernel.edits.llm.messages import encode, estimated_tokens, most_tokens
from mctskernel.edits.llm.model import Call
from mctskernel.edits.llm.options import OPENAI_URL, LLMOptions, ModelError
from mctskernel.edits.llm.prices import Price, Prices, Tokens, load_prices
from mctskernel.edits.llm.redaction import Redaction, quotes
from mctskernel.edits.llm.server import Server

_MOST_REFUSALS = 6
_MOST_WORDS = 300
_FREE = Price(0.0, 0.0)


def open_client(
    options: LLMOptions, dollars_left: float | None = None, backoff: Backoff | None = None
) -> Client:
    """A client of the server in the options, with the key from the environment. Raises ModelError."""
    prices = load_prices(Path(options.prices).expanduser() if options.prices else None)
    return Client(options, _key(options), prices, Allowance(dollars_left), backoff or Backoff())


@dataclass
class _Spent:
    """What a call has come to so far, also when it is ended from outside."""

    requests: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    dollars: float = 0.0
    estimated: bool = False


@dataclass(frozen=True)
class _Bill:
    """What one request took."""

    tokens: Tokens
    dollars: float
    is_counted: bool


@dataclass(frozen=True)
class _Request:
    """A call with what is known of it before it is sent. `dollars` is what `most` tokens cost."""

    call: Call
    model: str
    prompt: str
    price: Price
    most: Tokens
    dollars: float


class Client:
    """A `Model` that asks a server. Its calls share a thread, where `close` ends all of them."""

    def __init__(
        self, options: LLMOptions, key: str, prices: Prices, allowance: Allowance, backoff: Backoff
    ) -> None:
        """Asks nothing yet. Raises ModelError if money is limited and the model has no price."""
        self._options = options
        self._prices = prices
        self._allowance = allowance
        self._backoff = backoff
        self._has_key = bool(key)
        self._has_answered = False
        self._features: dict[str, Features] = {}
        self._redact = Redaction(key, str(Path("~").expanduser()))
        self._price(options.model)
        self._server = Server(options, key)
        self._background = Background("language-model", at_end=self._server.close)

    def complete(self, call: Call) -> Exchange:
        """One exchange, whatever the server does.

        Raises ModelError for what only the user can mend: a key that is missing or refused, or a model that the
        server doesn't know, both until a first reply has come; a model without a price where money is limited.
        """
        request = self._request(call)
        spent, began = _Spent(), time.monotonic()
        try:
            completion = self._background.run(self._answer(request, spent))
        except CancelledError:
            completion = _nothing("The call was ended because the search stops.")
        return Exchange(
            purpose=call.purpose,
            model=request.model,
            prompt=self._redact(request.prompt),
            reply=self._redact(completion.text),
            expert=call.expert,
            problem=self._redact(completion.problem),
            input_tokens=spent.tokens.input,
            output_tokens=spent.tokens.output,
            dollars=spent.dollars,
            seconds=time.monotonic() - began,
            loss=completion.loss,
            requests=spent.requests,
            estimated=spent.estimated,
        )

    def close(self) -> None:
        """End the calls in flight, from any thread; they and all later ones come back with a problem."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._options.model!r}, {self._options.url!r})"

    def _price(self, model: str) -> Price:
        price = self._prices.of(model)
        if price is None and self._allowance.is_limited:
            raise ModelError(
                f"The model {model} has no price, and money is limited: add it to a file and name that with --prices, "
                f'as in ["{model}"] with `input = 0.5` and `output = 2.0`, US dollars for a million tokens, or 0 for a '
                "server of your own."
            )
        return price or _FREE

    def _request(self, call: Call) -> _Request:
        model = call.model or self._options.model
        price = self._price(model)
        most = Tokens(most_tokens(call.messages, call.schema), self._options.max_output_tokens)
        return _Request(call, model, encode(call.messages), price, most, price.dollars(most))

    async def _answer(self, request: _Request, spent: _Spent) -> Completion:
        limit = self._options.call_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._ask_until_answered(request, spent, time.monotonic() + limit)
        except TimeoutError:
            return _nothing(f"{self._server.host} brought no reply within {limit:g} s{_times(spent)}.")

    async def _ask_until_answered(self, request: _Request, spent: _Spent, deadline: float) -> Completion:
        retries = 0
        while True:
            result = await self._ask_for_less(request, spent)
            if isinstance(result, Completion):
                self._has_answered = True
                return result
            self._raise_what_users_mend(result, request)
            may_retry = result.again and retries < self._options.retries
            wait = self._backoff.seconds(retries, result.wait) if may_retry else None
            if wait is None or time.monotonic() + wait >= deadline:
                return self._given_up(result, request, spent)
            retries += 1
            await asyncio.sleep(wait)

    async def _ask_for_less(self, request: _Request, spent: _Spent) -> Completion | Failure:
        """A request, and others that leave out what the server refuses, which is remembered once that is known."""
        expected = Features(
            limit="max_completion_tokens" if self._options.url == OPENAI_URL else "max_tokens"
        )
        features, is_known = self._features.get(request.model, expected), True
        for _ in range(_MOST_REFUSALS):
            sent = features.arguments(request.call, self._options)
            result = await self._ask(request, sent, spent)
            if isinstance(result, Completion):
                self._features[request.model] = features
                return result
            less = result.refusal and without_what_was_refused(features, result.refusal, sent)
            if not less:
                return result
            features, was_named = less
            is_known = is_known and was_named
            if is_known:
                self._features[request.model] = features
        return result

    async def _ask(self, request: _Request, sent: dict[str, Any], spent: _Spent) -> Completion | Failure:
        """One request, paid from the allowance: at its most, until and unless it is known to cost less."""
        if not await self._allowance.hold(request.dollars):
            return Failure("", loss=Loss.OVER_BUDGET)
        spent.requests += 1
        bill = _Bill(Tokens(estimated_tokens(request.prompt)), request.dollars, is_counted=False)
        try:
            result = await self._server.send(sent)
            bill = self._bill(request, result, bill)
            return result
        finally:
            self._allowance.settle(request.dollars, bill.dollars)
            spent.tokens += bill.tokens
            spent.dollars += bill.dollars
            spent.estimated |= not bill.is_counted

    def _bill(self, request: _Request, result: Completion | Failure, lost: _Bill) -> _Bill:
        """What a result took; `lost` is for one that may have been paid without a word of what it took."""
        if isinstance(result, Failure):
            return lost if result.maybe_paid else _Bill(Tokens(), 0.0, is_counted=True)
        tokens = result.tokens
        if tokens is None:
            is_full = result.loss is Loss.CUT_OFF
            output = self._options.max_output_tokens if is_full else estimated_tokens(result.text)
            tokens = lost.tokens + Tokens(output=output)
        return _Bill(tokens, request.price.dollars(tokens), is_counted=result.tokens is not None)

    def _raise_what_users_mend(self, failure: Failure, request: _Request) -> None:
        if self._has_answered:
            return
        variable = self._options.key_variable
        if failure.status in (401, 403) and not self._has_key:
            raise _no_key(f"{self._server.host} asks for a key", variable)
        if failure.status == 401:
            raise ModelError(f"{self._server.host} refuses the key in {variable}.")
        if failure.status == 404:
            raise ModelError(
                f"{self._server.host} has no model {request.model}, or no chat completions at this address: check "
                "--model and --base-url, which usually ends in /v1."
            )

    def _given_up(self, failure: Failure, request: _Request, spent: _Spent) -> Completion:
        if failure.loss is Loss.OVER_BUDGET:
            left = max(self._allowance.left, 0.0)
            sentence = f"A request could cost up to ${request.dollars:.4f}, and ${left:.4f} is left."
            return _nothing(sentence, Loss.OVER_BUDGET)
        sentence = f"{self._server.host} {failure.event}{_times(spent)}"
        words = " ".join(failure.words.split())
        prompt = " ".join(" ".join(message.content.split()) for message in request.call.messages)
        if words and not quotes(words, prompt):
            sentence += f": {words[:_MOST_WORDS]}"
        return _nothing(sentence.rstrip(".") + ".", failure.loss)


def _nothing(problem: str, loss: Loss = Loss.NO_REPLY) -> Completion:
    return Completion("", loss=loss, problem=problem)


def _times(spent: _Spent) -> str:
    return f", after {spent.requests} requests" if spent.requests > 1 else ""


def _key(options: LLMOptions) -> str:
    """The key in the environment, empty for none. Raises ModelError where it can't be one, without a word of it."""
    key = os.environ.get(options.key_variable, "").strip()
    if not key and urlsplit(options.url).hostname == urlsplit(OPENAI_URL).hostname:
        raise _no_key("OpenAI asks for a key", options.key_variable)
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ModelError(f"{options.key_variable} holds no key: there are characters in it that no key has.")
    return key


def _no_key(reason: str, variable: str) -> ModelError:
    return ModelError(
        f"{reason}: set the environment variable {variable}, or name another one with --api-key-env."
    )
