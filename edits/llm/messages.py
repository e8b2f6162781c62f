"""Messages as an exchange keeps them, and how many tokens they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from mctskernel.edits.llm.model import Message

_BYTES_PER_TOKEN = 3
"""Of sources and English, rounded down: byte-pair encodings come to between 3 and 4."""
_FEWEST_BYTES_PER_TOKEN = 2
"""What a guard counts with."""
_TOKENS_PER_MESSAGE = 8


def clean(text: str) -> str:
    """A text that can be sent and stored: surrogates that stand alone become question marks."""
    return text.encode("utf-8", "replace").decode()


def encode(messages: Iterable[Message]) -> str:
    """A prompt as a JSON array of messages."""
    return msgspec.json.encode(
        [{"role": message.role, "content": clean(message.content)} for message in messages]
    ).decode()


def estimated_tokens(text: str) -> int:
    """How many tokens a text is, by its length in bytes."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def most_tokens(messages: Iterable[Message], schema: Mapping[str, object] | None) -> int:
    """How many tokens a prompt is at the most; schemas count because servers put them into the prompt."""
    texts = [message.content for message in messages]
    described = len(msgspec.json.encode(schema)) if schema else 0
    size = sum(len(text.encode("utf-8", "replace")) for text in texts) + described
    return -(-size // _FEWEST_BYTES_PER_TOKEN) + _TOKENS_PER_MESSAGE * len(texts)
