"""A language model as proposers see it: messages in, one exchange out; and its options, which hold no secret."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from mctskernel.core.option import Count, Option, Positive
from mctskernel.core.proposer import Exchange, Purpose
from mctskernel.core.user_errors import MisuseError

_BYTES_PER_TOKEN = 3  # of sources and English, rounded down: byte-pair encodings come to between 3 and 4


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Call:
    """One request for a reply.

    `schema` is the JSON schema of the reply, `subject` the identity of the kernel that the call is about.
    """

    purpose: Purpose
    messages: tuple[Message, ...]
    schema: Mapping[str, object] | None = None
    expert: str = ""
    subject: str = ""


class Model(Protocol):
    """Answers calls; several threads may call at once."""

    def complete(self, call: Call) -> Exchange:
        """Return one exchange. A server's failure is its `problem`; nothing is raised for it."""


class OpenModel(Model, Protocol):
    """A model that holds connections until it is closed."""

    def close(self) -> None:
        """End the calls in flight, from any thread; they and all later ones return with a problem."""


def clean(text: str) -> str:
    """A text that can be sent and stored: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def encode(messages: Iterable[Message]) -> str:
    """A prompt as a JSON array of messages."""
    return msgspec.json.encode(
        [{"role": message.role, "content": clean(message.content)} for message in messages]
    ).decode()


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text from its length in bytes."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


OPENAI_URL = "https://api.openai.com/v1"
_FOLDER = "file:"

_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ModelError(MisuseError, RuntimeError):
    """A model that can't be used as it was configured; the message says what to change."""


class ReplyFormat(enum.StrEnum):
    """How the server is asked to structure replies: by a JSON schema, as any JSON object, or not at all."""

    SCHEMA = "schema"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True)
class Tokens:
    """Tokens of a request and its reply; `cached` is the part of `input` that the server had in its cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens. `cached` is the price of input that the server had in its cache."""

    input: float
    output: float
    cached: float | None = None

    def dollars(self, tokens: Tokens) -> float:
        cached = min(tokens.cached, tokens.input)
        cached_price = self.input if self.cached is None else self.cached
        fresh = tokens.input - cached
        return (fresh * self.input + cached * cached_price + tokens.output * self.output) / 1e6


PRICES = {
    "gpt-4.1": Price(2.00, 8.00, cached=0.50),
    "gpt-4.1-mini": Price(0.40, 1.60),
    "gpt-5-mini": Price(0.25, 2.00, cached=0.025),
    "gpt-5.4": Price(2.50, 15.00),
}
"""List prices as published in 2026. Prices change: check them before you rely on a budget in dollars."""


class LLMOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model on an OpenAI-compatible server, and how requests are made.

    `call_seconds` bounds a call with its retries and the waits between them, `request_seconds` how long each request
    may be silent.
    """

    model: Annotated[str, Option("The language model, as its server calls it.", metavar="NAME")]
    base_url: Annotated[
        str,
        Option(
            "An OpenAI-compatible server, such as http://localhost:8000/v1; or file:FOLDER, where each prompt is "
            "written as NAME.md and the reply is read from NAME.reply.md.",
            default="OpenAI's own",
            metavar="URL",
        ),
    ] = ""
    key_variable: Annotated[
        str,
        Option("The environment variable that holds the server's key.", "--api-key-env", metavar="VARIABLE"),
    ] = "OPENAI_API_KEY"
    max_output_tokens: Count = 16384
    temperature: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=2)] | None,
        Option("The model's sampling temperature.", default="the server's own"),
    ] = None
    reply_format: Annotated[
        ReplyFormat,
        Option(
            "Ask the server for replies that follow a JSON schema, for any JSON object, or for plain text."
        ),
    ] = ReplyFormat.SCHEMA
    call_seconds: Positive = 900.0
    request_seconds: Positive = 300.0
    retries: Annotated[int, msgspec.Meta(ge=0)] = 4
    price: Annotated[
        tuple[_Dollars, _Dollars] | None,
        Option(
            "What the model costs: US dollars for a million tokens. Without it, and without a list price, its cost is "
            "unknown and counted as $0; --max-usd then refuses it.",
            metavar="INPUT OUTPUT",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what can't work, and a URL that holds a secret: run.json keeps these options. Raises ModelError."""
        if not self.model.strip():
            raise ModelError("No model is named: add --model NAME, as the server calls it.")
        if not self.key_variable.isidentifier():
            raise ModelError(
                "--api-key-env takes the name of an environment variable, such as OPENAI_API_KEY, not the key."
            )
        if self.base_url and not self.folder:
            _check_url(self.base_url)

    @property
    def url(self) -> str:
        return self.base_url or OPENAI_URL

    @property
    def folder(self) -> str:
        """The folder of prompts and replies, if there is no server."""
        return self.base_url.removeprefix(_FOLDER) if self.base_url.startswith(_FOLDER) else ""

    @property
    def known_price(self) -> Price | None:
        """The price of the model: as given, else as listed; None if it is unknown."""
        return PRICES.get(self.model) if self.price is None else Price(*self.price)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        has_secret = bool(parts.username or parts.password or parts.query or parts.fragment)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ModelError("--base-url is not a URL, such as http://localhost:8000/v1.") from None
    if has_secret:
        raise ModelError(
            "--base-url may hold neither a user, a password nor a query, because run.json keeps it: put the key into "
            "an environment variable and name that with --api-key-env."
        )
    if not is_web:
        raise ModelError("--base-url is not an http or https URL, such as http://localhost:8000/v1.")
