"""Read the body of a chat completion, which may hold anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.proposer import Loss
from mctskernel.edits.llm.model import Tokens, clean


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
        return _unusable(_other_than_json(body))
    if isinstance(content, dict) and content.get("error") and not content.get("choices"):
        return _unusable(f"an error in place of a reply: {error_message(content['error'])[:300]}")
    try:
        choice = msgspec.convert(content, _Body).choices[0]
    except (*UNDECODABLE, IndexError):
        return _unusable("JSON that is no chat completion")
    return _of_choice(choice, _tokens(content.get("usage")))


def error_message(error: object) -> str:
    """The words in the `error` of a body: a text, or an object that holds one."""
    words = error.get("message") if isinstance(error, dict) else error
    return clean(words) if isinstance(words, str) else ""


def _unusable(what: str) -> Completion:
    return Completion(loss=Loss.NO_REPLY, problem=f"answered with {what}")


def _of_choice(choice: _Choice, tokens: Tokens | None) -> Completion:
    message, reason = choice.message, choice.finish_reason or ""
    content = message.content or ""
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    text = clean(content)
    if message.refusal:
        return Completion(clean(message.refusal), tokens, Loss.REFUSAL, "The model refused.")
    if reason == "content_filter":
        return Completion(text, tokens, Loss.REFUSAL, "The server's content filter ended the reply.")
    if reason == "length":
        thought = "" if text.strip() else " before the model had come to its answer"
        return Completion(
            text, tokens, Loss.CUT_OFF, f"The reply was cut off at the limit of tokens{thought}."
        )
    if not text.strip():
        return Completion("", tokens, Loss.EMPTY, "The reply is empty.")
    return Completion(text, tokens)


def _tokens(usage: Any) -> Tokens | None:
    try:
        found = msgspec.convert(usage, _Usage)
    except UNDECODABLE:
        return None
    if not found.prompt_tokens:
        return None  # no prompt is empty: these zeros mean that nothing was counted
    cached = found.prompt_tokens_details.cached_tokens if found.prompt_tokens_details else None
    return Tokens(found.prompt_tokens, found.completion_tokens, cached or 0)


def _other_than_json(body: bytes) -> str:
    start = body[:256].lstrip().lower()
    if not start:
        return "an empty body"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page"
    return "JSON that ends early" if start.startswith(b"{") else "something other than JSON"


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
