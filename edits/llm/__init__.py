"""Edits from language models on OpenAI-compatible servers."""

from __future__ import annotations

from pathlib import Path

from mctskernel.edits.llm.model import LLMOptions, OpenModel
from mctskernel.edits.llm.recording import CachedModel


def open_model(options: LLMOptions, *, dollars_left: float | None = None) -> OpenModel:
    """Open the model of these options; no request begins that could cost more than `dollars_left`.

    No request is made yet. Raises ModelError: no key where one is needed, no price where money is limited, or a cache
    folder that can't be used.
    """
    from mctskernel.edits.llm.client import open_client  # noqa: PLC0415 - importing openai takes a second

    model = open_client(options, dollars_left)
    return CachedModel(model, options, Path(options.cache).expanduser()) if options.cache else model
