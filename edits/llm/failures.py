"""What a request comes to that brings no reply: whether another may, and whether this one has to be paid."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx2
import openai

from mctskernel.core.backoff import retry_after
from mctskernel.core.proposer import Loss
from mctskernel.edits.llm.completion import error_message
from mctskernel.edits.llm.features import Refusal
from mctskernel.edits.llm.messages import clean

_TRANSIENT = frozenset({408, 409, 425, 429})
_WRONG_REQUEST = frozenset({400, 415, 422, 501})
_NO_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


@dataclass(frozen=True)
class Failure:
    """What happened, for a sentence that begins with the server, and in `words` what the server said of it.

    `again` says that another request may do better, after `wait` seconds if the server named them. `maybe_paid` says
    that the model may have been at work. `refusal` is what the server called wrong in the request.
    """

    event: str
    words: str = ""
    again: bool = False
    wait: float | None = None
    maybe_paid: bool = False
    refusal: Refusal | None = None
    status: int = 0
    loss: Loss = Loss.NO_REPLY


class TooLongError(httpx2.RequestError):
    """A reply of more bytes than are read."""


class EncodedError(httpx2.RequestError):
    """A reply in an encoding that wasn't asked for."""


def of_status(error: openai.APIStatusError) -> Failure:
    """A status other than success."""
    status, refusal = error.status_code, _refusal(error.body)
    if 300 <= status < 400:
        return Failure(f"answered {status}, a redirection, which is not followed", status=status)
    wait = retry_after(error.response.headers)
    transient = status in _TRANSIENT or (status >= 500 and status not in _WRONG_REQUEST)
    return Failure(
        f"answered {status}",
        words=refusal.message,
        again=transient and refusal.code not in _NO_MONEY,
        wait=wait,
        refusal=refusal if status in _WRONG_REQUEST else None,
        status=status,
    )


def of_connection(error: Exception) -> Failure:
    """A connection that couldn't be made, or that ended before the reply."""
    cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__
    match cause:
        case TooLongError():
            return Failure(str(cause), maybe_paid=True, loss=Loss.CUT_OFF)
        case EncodedError():
            return Failure(str(cause), maybe_paid=True)
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return Failure("could not be reached in time", again=True)
        case httpx2.ConnectError() | httpx2.ProxyError():
            return Failure("could not be reached", again=True)
        case httpx2.LocalProtocolError() | httpx2.UnsupportedProtocol():
            return Failure("could not be asked: the request is malformed")
        case httpx2.TimeoutException():
            return Failure("fell silent", again=True, maybe_paid=True)
        case _:
            return Failure("ended the connection before its reply was whole", again=True, maybe_paid=True)


def _refusal(body: object) -> Refusal:
    if not isinstance(body, dict):
        return Refusal()
    detail = body.get("detail")
    words = error_message(body) or (detail if isinstance(detail, str) else _listed(detail))
    return Refusal(clean(words), *(clean(str(body.get(name) or "")) for name in ("param", "code")))


def _listed(detail: object) -> str:
    """What FastAPI says of a request that doesn't validate."""
    return json.dumps(detail, ensure_ascii=False) if isinstance(detail, list) else ""
