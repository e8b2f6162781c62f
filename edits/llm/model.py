"""A language model as proposers see it: messages in, one exchange out, whatever its server does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from mctskernel.core.proposer import Exchange, Purpose


@dataclass(frozen=True)
class Message:
    """One message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Call:
    """What a model is to be asked.

    `schema` is the JSON schema that a reply has to follow, held to by servers that can. `model` is empty for the one
    that was configured, `temperature` None for the server's own. `subject` is the identity of the kernel that it is
    about, by which a recording finds the reply where the prompt differs in measured times alone.
    """

    purpose: Purpose
    messages: tuple[Message, ...]
    schema: Mapping[str, object] | None = None
    expert: str = ""
    model: str = ""
    temperature: float | None = None
    seed: int = 0
    subject: str = ""


class Model(Protocol):
    """Answers calls; several threads may call at once."""

    def complete(self, call: Call) -> Exchange:
        """One exchange. A server that fails is told in its `problem`; nothing is raised for it."""
        ...


class OpenModel(Model, Protocol):
    """A model that holds connections until it is closed."""

    def close(self) -> None:
        """End the calls in flight, from any thread; they and all later ones come back with a problem."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
