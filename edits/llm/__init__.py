"""Edits from language models on OpenAI-compatible servers, or by files."""

from __future__ import annotations

from pathlib import Path

from mctskernel.edits.llm.folder import FolderModel
from mctskernel.edits.llm.model import LLMOptions, OpenModel


def open_model(options: LLMOptions, *, dollars_left: float | None = None) -> OpenModel:
    """Open the model of these options, without a request. Raises ModelError: a key or a price is missing."""
    if folder := options.folder:
        return FolderModel(Path(folder), options.model)
    from mctskernel.edits.llm.client import Client  # noqa: PLC0415 - importing openai takes a second

    return Client(options, dollars_left)
