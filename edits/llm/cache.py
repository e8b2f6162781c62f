"""Replies to identical calls, kept in a folder for later searches."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.proposer import Exchange
from mctskernel.edits.llm.messages import encode
from mctskernel.edits.llm.model import Call, OpenModel
from mctskernel.edits.llm.options import LLMOptions, ModelError


class CachedModel:
    """A model that is asked only what the folder has no whole reply to."""

    def __init__(self, model: OpenModel, options: LLMOptions, folder: Path) -> None:
        """Makes the folder, which only its owner can read. Raises ModelError if that can't be done."""
        self._model = model
        self._options = options
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            model.close()
            raise ModelError(f"--cache {folder.name} can't be made: {error.strerror}.") from None

    def complete(self, call: Call) -> Exchange:
        """The exchange of an identical call, free of charge, or else the model's."""
        file = self._file(call)
        kept = _read(file)
        if kept is not None:
            return kept.exchange(call, self._options)
        exchange = self._model.complete(call)
        if exchange.loss is None and exchange.reply:
            _write(file, _Kept.of(exchange))
        return exchange

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _file(self, call: Call) -> Path:
        digest = hashlib.sha256(
            msgspec.json.encode(_identity(call, self._options), order="sorted")
        ).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"


def _identity(call: Call, options: LLMOptions) -> dict[str, Any]:
    """What decides a reply: the same model at another server is another model."""
    return {
        "server": options.url,
        "model": call.model or options.model,
        "messages": encode(call.messages),
        "schema": call.schema,
        "temperature": options.temperature if call.temperature is None else call.temperature,
        "seed": call.seed,
        "max_output_tokens": options.max_output_tokens,
    }


class _Kept(msgspec.Struct, frozen=True):
    reply: str
    input_tokens: int
    output_tokens: int
    estimated: bool

    @classmethod
    def of(cls, exchange: Exchange) -> _Kept:
        return cls(exchange.reply, exchange.input_tokens, exchange.output_tokens, exchange.estimated)

    def exchange(self, call: Call, options: LLMOptions) -> Exchange:
        return Exchange(
            purpose=call.purpose,
            model=call.model or options.model,
            prompt=encode(call.messages),
            reply=self.reply,
            expert=call.expert,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            recorded=True,
            requests=0,
            estimated=self.estimated,
        )


def _read(file: Path) -> _Kept | None:
    """What was kept; None for nothing, and for what is damaged, which is then written anew."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, *UNDECODABLE):
        return None


def _write(file: Path, kept: _Kept) -> None:
    """Keep a reply so that it is never seen half-written. A full disk costs the reply later, not the search now."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(kept))
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
