"""A model on an OpenAI-compatible server: the SDK's retries, a bound on time, and a budget in dollars."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import openai

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.model import (
    OPENAI_URL,
    Call,
    LLMOptions,
    ModelError,
    Price,
    ReplyFormat,
    Tokens,
    clean,
    encode,
    estimated_tokens,
)

_NO_KEY = "none"
"""Sent where no key is set: the SDK makes no request without one, and self-hosted servers need none."""

_CONNECT_SECONDS = 10.0
_CLOSING_SECONDS = 1.0
_MOST_WORDS = 300

_LEAST_SECRET = 8
"""Characters below which a key is a placeholder such as `EMPTY`, and too common a word to be redacted."""


class Client:
    """A model on a server. Its calls share an event loop in a thread, where `close` ends all of them."""

    def __init__(self, options: LLMOptions, dollars_left: float | None = None) -> None:
        """Read the key from the environment. Raises ModelError without one, or without a price for limited money."""
        key, price = _key(options), options.known_price
        if price is None and dollars_left is not None:
            raise ModelError(
                f"The price of the model {options.model} is unknown, and money is limited: add --price INPUT OUTPUT, "
                "US dollars for a million tokens, or --price 0 0 for a server of your own."
            )
        self._options, self._price = options, price or Price(0.0, 0.0)
        self._budget = DollarBudget(dollars_left)
        self._has_key = bool(key)
        self._has_answered = False
        self._host = urlsplit(options.url).hostname or ""
        self._redact = redaction(key, str(Path("~").expanduser()))
        # No redirections, which could carry prompts elsewhere.
        http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
        try:
            self._openai = openai.AsyncOpenAI(
                api_key=key or _NO_KEY,
                base_url=options.url,
                timeout=httpx2.Timeout(options.request_seconds, connect=_CONNECT_SECONDS),
                max_retries=options.retries,
                http_client=http,
            )
        except httpx2.InvalidURL:
            raise ModelError("--base-url is not a URL, such as http://localhost:8000/v1.") from None
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="language-model", daemon=True)
        self._thread.start()

    def complete(self, call: Call) -> Exchange:
        """Return one exchange. Raises ModelError for what only the user can fix: a refused key, model or request."""
        prompt, began = encode(call.messages), time.monotonic()
        bill = _Bill(self._price, prompt, self._options.max_output_tokens)
        try:
            completion = self._run(self._answer(call, bill))
        except CancelledError:
            completion = _lost("The call was ended because the search stops")
        return Exchange(
            purpose=call.purpose,
            model=self._options.model,
            prompt=self._redact(prompt),
            reply=self._redact(completion.text),
            expert=call.expert,
            problem=self._redact(completion.problem),
            input_tokens=bill.tokens.input,
            output_tokens=bill.tokens.output,
            dollars=bill.dollars,
            seconds=time.monotonic() - began,
            loss=completion.loss,
            requests=bill.requests,
            estimated=bill.estimated,
        )

    def close(self) -> None:
        """End the calls in flight, from any thread; they and all later ones return with a problem."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    def __repr__(self) -> str:
        return f"Client({self._options.model!r}, {self._options.url!r})"

    def _run(self, work: Coroutine[Any, Any, Completion]) -> Completion:
        """What the coroutine returns. Raises CancelledError (of concurrent.futures) once this is closed."""
        with self._lock:
            if self._closed:
                work.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            # Ctrl-C comes here as KeyboardInterrupt, and the work has to end with it.
            future.cancel()

    def _serve(self) -> None:
        """The thread: calls until `close`, then their end and that of the connections."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            asyncio.set_event_loop(runner.get_loop())
            self._loop.run_forever()
            runner.run(self._end())

    async def _end(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._openai.close()

    async def _answer(self, call: Call, bill: _Bill) -> Completion:
        if not await self._budget.hold(bill.most):
            left = self._budget.left or 0.0
            return _lost(
                f"A request could cost up to ${bill.most:.4f}, and ${left:.4f} is left", Loss.OVER_BUDGET
            )
        try:
            return await self._send(call, bill)
        finally:
            self._budget.settle(bill.most, bill.dollars)

    async def _send(self, call: Call, bill: _Bill) -> Completion:
        limit = self._options.call_seconds
        refused: openai.APIStatusError | None = None
        bill.sent(1)
        try:
            async with asyncio.timeout(limit):
                response = await self._openai.chat.completions.with_raw_response.create(
                    **self._arguments(call)
                )
        except TimeoutError:
            return _lost(f"{self._host} brought no reply within {limit:g} s")
        except openai.APIStatusError as error:
            refused = error
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
                bill.refused(_requests(error.request))
                return _lost(f"{self._host} could not be reached{_times(error.request)}")
            bill.sent(_requests(error.request))
            silent = isinstance(error, openai.APITimeoutError)
            event = "fell silent" if silent else "ended the connection before its reply was whole"
            return _lost(f"{self._host} {event}{_times(error.request)}")
        except httpx2.HTTPError:
            return _lost(f"{self._host} ended the connection before its reply was whole")
        if refused is not None:
            # Outside of the handler: a ModelError must not carry the server's words as its context.
            bill.refused(_requests(refused.request))
            return self._failed(refused)
        completion = read_completion(response.content)
        bill.answered(completion, response.retries_taken + 1)
        if completion.loss is Loss.NO_REPLY:
            return _lost(f"{self._host} {completion.problem}")
        self._has_answered = True
        return completion

    def _arguments(self, call: Call) -> dict[str, Any]:
        options = self._options
        limit_name = "max_completion_tokens" if options.url == OPENAI_URL else "max_tokens"
        arguments: dict[str, Any] = {
            "model": options.model,
            "messages": [{"role": each.role, "content": clean(each.content)} for each in call.messages],
            limit_name: options.max_output_tokens,
        }
        if options.temperature is not None:
            arguments["temperature"] = options.temperature
        if call.schema is not None and options.reply_format is ReplyFormat.SCHEMA:
            schema = {"name": call.purpose.value, "schema": call.schema, "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif call.schema is not None and options.reply_format is ReplyFormat.JSON:
            arguments["response_format"] = {"type": "json_object"}
        return arguments

    def _failed(self, error: openai.APIStatusError) -> Completion:
        """A status other than success. Raises ModelError for what the user has to fix."""
        status, words = error.status_code, _words(error.body)
        variable = self._options.key_variable
        if not self._has_answered:
            if status in (401, 403) and not self._has_key:
                raise _no_key(f"{self._host} asks for a key", variable)
            if status == 401:
                raise ModelError(f"{self._host} refuses the key in {variable}.")
            if status == 404:
                raise ModelError(
                    f"{self._host} has no model {self._options.model}, or no chat completions at this address: check "
                    "--model and --base-url, which usually ends in /v1."
                )
            if status in (400, 415, 422, 501):
                raise ModelError(
                    self._redact(
                        f"{self._host} refused the first request ({status}{words}). If it doesn't support JSON "
                        "schemas, add --reply-format json or text; if it refuses the temperature, leave that out."
                    )
                )
        if 300 <= status < 400:
            return _lost(f"{self._host} answered {status}, a redirection, which is not followed")
        return _lost(f"{self._host} answered {status}{_times(error.request)}{words}")


@dataclass(frozen=True)
class Completion:
    """A model's reply. `loss` and `problem` say why it isn't whole; `tokens` is None if the server counted none."""

    text: str = ""
    tokens: Tokens | None = None
    loss: Loss | None = None
    problem: str = ""


def read_completion(body: bytes) -> Completion:
    """The first choice of a chat completion; NO_REPLY, and what it is, for any other body. Nothing is raised."""
    try:
        content = json.loads(body.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return _lost("answered with something other than JSON")
    if isinstance(content, dict) and content.get("error") and not content.get("choices"):
        return _lost(f"answered with an error in place of a reply: {_message_of(content['error'])[:300]}")
    try:
        choice = msgspec.convert(content, _Body).choices[0]
    except (*UNDECODABLE, IndexError):
        return _lost("answered with JSON that is no chat completion")
    message, tokens = choice.message, _tokens(content.get("usage"))
    parts = message.content or ""
    text = clean(parts if isinstance(parts, str) else "".join(part.text or "" for part in parts))
    if message.refusal:
        return Completion(clean(message.refusal), tokens, Loss.REFUSAL, "The model refused.")
    if choice.finish_reason == "content_filter":
        return Completion(text, tokens, Loss.REFUSAL, "The server's content filter ended the reply.")
    if choice.finish_reason == "length":
        thought = "" if text.strip() else " before the model had come to its answer"
        return Completion(
            text, tokens, Loss.CUT_OFF, f"The reply was cut off at the limit of tokens{thought}."
        )
    if not text.strip():
        return Completion("", tokens, Loss.EMPTY, "The reply is empty.")
    return Completion(text, tokens)


def _lost(event: str, loss: Loss = Loss.NO_REPLY) -> Completion:
    return Completion(loss=loss, problem=event.rstrip(".") + ".")


def _message_of(error: object) -> str:
    """The words in the `error` of a body: a text, or an object that holds one."""
    words = error.get("message") if isinstance(error, dict) else error
    return clean(words) if isinstance(words, str) else ""


def _tokens(usage: Any) -> Tokens | None:
    try:
        found = msgspec.convert(usage, _Usage)
    except UNDECODABLE:
        return None
    if not found.prompt_tokens:
        return None  # no prompt is empty: these zeros mean that nothing was counted
    cached = found.prompt_tokens_details.cached_tokens if found.prompt_tokens_details else None
    return Tokens(found.prompt_tokens, found.completion_tokens, cached or 0)


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


_Number = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _Details(msgspec.Struct):
    cached_tokens: _Number | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Number
    completion_tokens: _Number
    prompt_tokens_details: _Details | None = None


class DollarBudget:
    """US dollars that are left, some of them held for requests in flight; None is no limit."""

    def __init__(self, dollars: float | None) -> None:
        self.left = dollars
        self._held: list[float] = []
        self._settled = asyncio.Event()

    async def hold(self, dollars: float) -> bool:
        """Hold what a request may cost at the most; False, and nothing is held, if that is more than is left.

        Where it is more only because of other requests in flight, wait until these are paid.
        """
        while self.left is not None and dollars > self.left - sum(self._held):
            if dollars > self.left or not self._held:
                return False
            await self._settled.wait()
        self._held.append(dollars)
        return True

    def settle(self, held: float, paid: float) -> None:
        """Replace what was held for a request by what it cost."""
        self._held.remove(held)
        if self.left is not None:
            self.left -= paid
        self._settled.set()
        self._settled = asyncio.Event()


class _Bill:
    """What a call has cost so far, also when it is cancelled: a request without a reply may have been paid in full."""

    def __init__(self, price: Price, prompt: str, max_output_tokens: int) -> None:
        self._price = price
        self._max_output_tokens = max_output_tokens
        self._input = estimated_tokens(prompt)
        # A prompt has at most one token for every 2 bytes.
        self.most = price.dollars(Tokens(-(-len(prompt.encode()) // 2), max_output_tokens))
        self.tokens = Tokens()
        self.dollars = 0.0
        self.requests = 0
        self.estimated = False

    def sent(self, requests: int) -> None:
        """Requests are on their way, or were lost on it."""
        self.requests, self.estimated = requests, True
        self.tokens, self.dollars = Tokens(self._input * requests), self.most * requests

    def refused(self, requests: int) -> None:
        """No request was served: an error costs nothing."""
        self.requests, self.estimated = requests, False
        self.tokens, self.dollars = Tokens(), 0.0

    def answered(self, completion: Completion, requests: int) -> None:
        """The last of some requests brought a reply; without its tokens, or unreadable, it is estimated."""
        self.requests = requests
        if completion.tokens is None and completion.loss is Loss.NO_REPLY:
            self.sent(1)
            self.requests = requests
            return
        self.estimated = completion.tokens is None
        is_full = completion.loss is Loss.CUT_OFF
        output = self._max_output_tokens if is_full else estimated_tokens(completion.text)
        self.tokens = completion.tokens or Tokens(self._input, output)
        self.dollars = self._price.dollars(self.tokens)


def redaction(key: str, home: str) -> Callable[[str], str]:
    """What removes a key, in the forms that a server may echo, the home folder, and user names in URLs from a text."""
    forms = sorted({key, quote(key, safe="")}, key=len, reverse=True) if len(key) >= _LEAST_SECRET else ()
    # A home of one name, such as /root, may also be a quotient in a source: only a path that goes on is one.
    pattern = rf"(?<![\w)\]]){re.escape(home.rstrip('/'))}(?=/)" if home.strip("/") else ""

    def redact(text: str) -> str:
        for form in forms:
            text = text.replace(form, "[key]")
        text = re.sub(pattern, "~", text) if pattern else text
        return re.sub(r"(?<=://)[^\s/@\"'<>]+@", "", text)

    return redact


def _requests(request: httpx2.Request) -> int:
    """How many requests were made up to this one, by the SDK's own header."""
    return int(request.headers.get("x-stainless-retry-count", "0")) + 1


def _times(request: httpx2.Request) -> str:
    count = _requests(request)
    return f" after {count} requests" if count > 1 else ""


def _words(body: object) -> str:
    """What an error says, after a colon."""
    detail = body.get("detail") if isinstance(body, dict) else None
    listed = json.dumps(detail, ensure_ascii=False) if isinstance(detail, list) else ""
    words = " ".join((_message_of(body) or _message_of(detail) or clean(listed)).split())
    return f": {words[:_MOST_WORDS]}" if words else ""


def _key(options: LLMOptions) -> str:
    """The key in the environment, empty for none. Raises ModelError where it can't be one, without showing it."""
    key = os.environ.get(options.key_variable, "").strip()
    if not key and urlsplit(options.url).hostname == urlsplit(OPENAI_URL).hostname:
        raise _no_key("OpenAI asks for a key", options.key_variable)
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ModelError(f"{options.key_variable} holds characters that no key has.")
    return key


def _no_key(reason: str, variable: str) -> ModelError:
    return ModelError(
        f"{reason}: set the environment variable {variable}, or name another one with --api-key-env."
    )
