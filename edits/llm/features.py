"""What a server can do, found out by what it refuses."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mctskernel.edits.llm.messages import clean
from mctskernel.edits.llm.model import Call
from mctskernel.edits.llm.options import LLMOptions

LimitName = Literal["max_tokens", "max_completion_tokens"]

_WORDS_OF_FORMATS = (
    "response_format",
    "json_schema",
    "json_object",
    "structured",
    "guided",
    "grammar",
    "schema",
)
_WORDS_OF_LENGTH = ("context length", "context_length", "context window", "context size", "too long")


class Structure(enum.Enum):
    """How a server holds a reply to a schema."""

    SCHEMA = "json_schema"
    OBJECT = "json_object"
    TEXT = "text"


@dataclass(frozen=True)
class Features:
    """What is asked of a server for one model. `limit` is the name that it has for the limit of a reply."""

    structure: Structure = Structure.SCHEMA
    seed: bool = True
    temperature: bool = True
    limit: LimitName = "max_tokens"

    def arguments(self, call: Call, options: LLMOptions) -> dict[str, Any]:
        """The parameters of a chat completion."""
        arguments: dict[str, Any] = {
            "model": call.model or options.model,
            "messages": [
                {"role": message.role, "content": clean(message.content)} for message in call.messages
            ],
            self.limit: options.max_output_tokens,
        }
        if self.seed:
            arguments["seed"] = call.seed
        temperature = options.temperature if call.temperature is None else call.temperature
        if self.temperature and temperature is not None:
            arguments["temperature"] = temperature
        if call.schema is not None and self.structure is not Structure.TEXT:
            arguments["response_format"] = _response_format(self.structure, call)
        return arguments


@dataclass(frozen=True)
class Refusal:
    """A request that a server called wrong, in its words; `parameter` is what it named, if it did."""

    message: str = ""
    parameter: str = ""
    code: str = ""

    @property
    def is_about_length(self) -> bool:
        """Whether the prompt was too long, which no parameter mends."""
        words = f"{self.code} {self.message}".lower()
        return any(part in words for part in _WORDS_OF_LENGTH)

    def names(self, *words: str) -> bool:
        """Whether one of these parameters is what is wrong."""
        said = (self.parameter or f"{self.message} {self.code}").lower()
        return any(word in said for word in words)


def without_what_was_refused(
    features: Features, refusal: Refusal, sent: Mapping[str, Any]
) -> tuple[Features, bool] | None:
    """What to ask for instead, and whether the refusal named what was wrong; None if nothing is left to leave out.

    A refusal that names nothing costs one thing after another, the structure first.
    """
    if refusal.is_about_length:
        return None
    if "response_format" in sent and refusal.names(*_WORDS_OF_FORMATS):
        return _less_structured(features), True
    if "seed" in sent and refusal.names("seed"):
        return replace(features, seed=False), True
    if "temperature" in sent and refusal.names("temperature"):
        return replace(features, temperature=False), True
    if refusal.names("max_tokens", "max_completion_tokens"):
        return _other_limit(features, refusal)
    if refusal.parameter:
        return None
    if "response_format" in sent:
        return _less_structured(features), False
    if "seed" in sent:
        return replace(features, seed=False), False
    if "temperature" in sent:
        return replace(features, temperature=False), False
    return None


def _less_structured(features: Features) -> Features:
    follower = Structure.OBJECT if features.structure is Structure.SCHEMA else Structure.TEXT
    return replace(features, structure=follower)


def _other_limit(features: Features, refusal: Refusal) -> tuple[Features, bool] | None:
    """The other name, unless it is the number that is wrong."""
    other: LimitName = "max_completion_tokens" if features.limit == "max_tokens" else "max_tokens"
    unknown = refusal.names(features.limit) and any(
        word in f"{refusal.message} {refusal.code}".lower()
        for word in (
            "unsupported",
            "not supported",
            "unrecognized",
            "unknown",
            "unexpected",
            "not permitted",
            "extra",
        )
    )
    return (replace(features, limit=other), True) if unknown else None


def _response_format(structure: Structure, call: Call) -> dict[str, Any]:
    if structure is Structure.OBJECT:
        return {"type": structure.value}
    described = {"name": call.purpose.value, "schema": call.schema, "strict": True}
    return {"type": structure.value, "json_schema": described}
