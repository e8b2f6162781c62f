"""What the body of a chat completion says, whoever wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.proposer import Loss
from mctskernel.edits.llm.messages import clean
from mctskernel.edits.llm.prices import Tokens


@dataclass(frozen=True)
class Completion:
    """A model's reply. `loss` and `problem` say why it isn't a whole one; `tokens` is None if they weren't counted."""

    text: str
    tokens: Tokens | None = None
    loss: Loss | None = None
    problem: str = ""


@dataclass(frozen=True)
class Unusable:
    """A body that is no chat completion: what it is, and the server's own words in it."""

    reason: str
    words: str = ""


def read_completion(body: bytes) -> Completion | Unusable:
    """The first choice of a chat completion. Nothing is raised, whatever the bytes are."""
    try:
        content = json.loads(body.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return Unusable(_other_than_json(body))
    if isinstance(content, dict) and content.get("error") and not content.get("choices"):
        return Unusable("an error in place of a reply", error_message(content["error"]))
    try:
        choice = msgspec.convert(content, _Body).choices[0]
    except (*UNDECODABLE, IndexError):
        return Unusable("JSON that is no chat completion")
    return _of_choice(choice, _tokens(content.get("usage")))


def error_message(error: object) -> str:
    """The words in the `error` of a body: a text, or an object that holds one."""
    words = error.get("message") if isinstance(error, dict) else error
    return clean(words) if isinstance(words, str) else ""


def _of_choice(choice: _Choice, tokens: Tokens | None) -> Completion:
    message, reason = choice.message, choice.finish_reason or ""
    text = clean(_text(message))
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


def _text(message: _Message) -> str:
    """The content; without any, the arguments of a tool that was called instead."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    if content:
        return content
    return next((call.function.arguments for call in message.tool_calls or () if call.function.arguments), "")


def _tokens(usage: Any) -> Tokens | None:
    try:
        found = msgspec.convert(usage, _Usage)
    except UNDECODABLE:
        return None
    if not found.prompt_tokens:
        return None  # no prompt is empty: these zeros stand for not knowing
    cached = found.prompt_tokens_details.cached_tokens if found.prompt_tokens_details else None
    return Tokens(found.prompt_tokens, found.completion_tokens, min(cached or 0, found.prompt_tokens))


def _other_than_json(body: bytes) -> str:
    start = body[:256].lstrip().lower()
    if not start:
        return "an empty body"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page"
    return "JSON that ends early" if start.startswith(b"{") else "something other than JSON"


class _Part(msgspec.Struct):
    text: str | None = None


class _Function(msgspec.Struct):
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


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
