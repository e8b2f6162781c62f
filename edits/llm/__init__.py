"""Edits from language models on OpenAI-compatible servers, or by files."""

from __future__ import annotations

from pathlib import Path

from mctskernel.edits.llm.folder import FolderModel
from mctskernel.edits.llm.model import LLMOptions, OpenModel


def open_model(options: LLMOptions, *, dollars_left: float | None = None) -> OpenModel:
    """Open the model of these options; no request begins that could cost more than `dollars_left`.

    No request is made yet. Raises ModelError: no key where one is needed, or no price where money is limited.
    """
    if folder := options.folder:
        return FolderModel(Path(folder), options.model)
    from mctskernel.edits.llm.client import Client  # noqa: PLC0415 - importing openai takes a second

    return Client(options, dollars_left)
