"""What a user chooses about a language model, in a form that a run can keep: it holds no secret."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from mctskernel.core.user_errors import MisuseError

OPENAI_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "OPENAI_API_KEY"

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class ModelError(MisuseError, RuntimeError):
    """A model that can't be asked as it was configured; the message says what to change."""


class LLMOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model on an OpenAI-compatible server, and how it is asked.

    `base_url` is empty for OpenAI's own, `key_variable` the environment variable that holds the key. `temperature` is
    None for the server's own where a call names none. `call_seconds` bounds a call with its retries and the waits
    between them, `request_seconds` each of its requests. `prices` is a file like `prices.toml`, whose prices come
    before the built-in ones. `cache` is a folder with the replies to identical calls, empty for none.
    """

    model: str
    base_url: str = ""
    key_variable: str = KEY_VARIABLE
    max_output_tokens: _Count = 16384
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    call_seconds: _Positive = 900.0
    request_seconds: _Positive = 300.0
    connect_seconds: _Positive = 10.0
    retries: Annotated[int, msgspec.Meta(ge=0)] = 4
    max_reply_bytes: _Count = 400_000
    prices: str = ""
    cache: str = ""

    def __post_init__(self) -> None:
        """Refuse what can't work, and a URL with a secret in it: run.json keeps these options. Raises ModelError."""
        if not self.model.strip():
            raise ModelError("No model is named: add --model NAME, as the server calls it.")
        if not self.key_variable.isidentifier():
            raise ModelError(
                "--api-key-env takes the name of an environment variable, such as OPENAI_API_KEY, not the key."
            )
        if self.base_url:
            _check_url(self.base_url)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.base_url or OPENAI_URL


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
