"""A transcript: every call of a model, written down as it is answered, so that it can be repeated without the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mctskernel.core.proposer import Exchange
from mctskernel.edits.llm.model import Call, OpenModel
from mctskernel.edits.llm.options import ModelError
from mctskernel.edits.llm.recording import Recorded


class Transcript:
    """A model whose exchanges are appended to a file, a JSON object a line. Several threads may call at once."""

    def __init__(self, model: OpenModel, path: Path) -> None:
        self._model = model
        self._path = path
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []

    @property
    def dollars(self) -> float:
        """What was paid so far."""
        return sum(exchange.dollars for exchange in self.exchanges)

    @property
    def tokens(self) -> int:
        """Tokens that went in and came out so far."""
        return sum(exchange.input_tokens + exchange.output_tokens for exchange in self.exchanges)

    def complete(self, call: Call) -> Exchange:
        """The model's exchange, once it is written down."""
        exchange = self._model.complete(call)
        with self._lock:
            self.exchanges.append(exchange)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(Recorded(call.subject, exchange)) + b"\n")
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


def read_transcript(path: Path) -> Iterator[Recorded]:
    """The exchanges of a file; a last line that was cut off is passed over. Raises ModelError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}.") from error
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield msgspec.json.decode(line, type=Recorded)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}, line {number}, is no exchange with a model: {error}.") from error
