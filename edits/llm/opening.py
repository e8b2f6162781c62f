"""A model as it was configured, ready to be asked."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from mctskernel.core.proposer import Exchange
from mctskernel.edits.llm.model import Call
from mctskernel.edits.llm.options import LLMOptions


class OpenModel(Protocol):
    """A model that holds connections until it is closed."""

    def complete(self, call: Call) -> Exchange:
        """One exchange, as `Model.complete`. Raises ModelError for what only the user can mend."""
        ...

    def close(self) -> None:
        """End the calls in flight, from any thread; they and all later ones come back with a problem."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_model(options: LLMOptions, *, dollars_left: float | None = None) -> OpenModel:
    """The model of these options; no call begins that could cost more than what is left of the budget.

    Nothing is asked yet. Raises ModelError: no key where one is needed, no price where there is a budget, or a file
    of prices or a folder for replies that can't be used.
    """
    # Importing openai takes a second, which no other proposer has to pay.
    from mctskernel.edits.llm.client import open_client  # noqa: PLC0415

    return open_client(options, dollars_left)
