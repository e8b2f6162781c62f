"""A model as it was configured, ready to be asked."""

from __future__ import annotations

from pathlib import Path

from mctskernel.edits.llm.cache import CachedModel
from mctskernel.edits.llm.model import OpenModel
from mctskernel.edits.llm.options import LLMOptions


def open_model(options: LLMOptions, *, dollars_left: float | None = None) -> OpenModel:
    """The model of these options; no request begins that could cost more than what is left of the budget.

    Nothing is asked yet. Raises ModelError: no key where one is needed, no price where money is limited, or a file of
    prices or a folder for replies that can't be used.
    """
    # Importing openai takes a second, which no other proposer has to pay.
    from mctskernel.edits.llm.client import open_client  # noqa: PLC0415 - as said above

    model = open_client(options, dollars_left)
    return CachedModel(model, options, Path(options.cache).expanduser()) if options.cache else model
