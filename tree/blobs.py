"""Blobs: large texts kept beside the journal and named in it by their SHA-256."""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from mctskernel.core.edit import Edit, Patch, Settings, WholeSource
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Exchange
from mctskernel.tree.events import EditRecord, KernelRecord, storable, storable_text


class Blobs(Protocol):
    """Where texts are kept. A text must be on disk before `put` returns: an event may name it next."""

    def put(self, text: str) -> str:
        """Keep a text and return its name, `digest(text)`."""

    def get(self, name: str) -> str:
        """The text of a name. Raises KeyError for an unknown one."""


class MemoryBlobs:
    """Blobs of a search that isn't kept."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def put(self, text: str) -> str:
        name = digest(text)
        self._texts[name] = text
        return name

    def get(self, name: str) -> str:
        return self._texts[name]


def digest(text: str) -> str:
    """The name of a text: 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def put_text(blobs: Blobs, text: str) -> str:
    """Keep a text of any origin and return its name."""
    return blobs.put(storable_text(text))


def put_kernel(blobs: Blobs, kernel: Kernel) -> KernelRecord:
    return KernelRecord(kernel.identity, blobs.put(kernel.source), kernel.language)


def get_kernel(blobs: Blobs, record: KernelRecord) -> Kernel:
    return Kernel(blobs.get(record.source), record.language)


def put_edit(blobs: Blobs, edit: Edit) -> EditRecord:
    """Keep what an edit changes. A prior that isn't a positive number becomes the least promise."""
    change = "" if isinstance(edit.change, Settings) else blobs.put(_encode_change(edit.change))
    prior = edit.prior if LEAST_PRIOR < edit.prior < float("inf") else LEAST_PRIOR
    return EditRecord(**{**vars(edit), "change": change, "prior": prior})


def get_edit(blobs: Blobs, record: EditRecord) -> Edit:
    change = _CHANGE.decode(blobs.get(record.change)) if record.change else Settings()
    return Edit(**{**msgspec.structs.asdict(record), "change": change})


def put_exchange(blobs: Blobs, exchange: Exchange) -> Exchange:
    """An exchange whose texts are names of blobs."""
    reply = put_text(blobs, exchange.reply) if exchange.reply else ""
    return msgspec.structs.replace(exchange, prompt=put_text(blobs, exchange.prompt), reply=reply)


def get_exchange(blobs: Blobs, record: Exchange) -> Exchange:
    reply = blobs.get(record.reply) if record.reply else ""
    return msgspec.structs.replace(record, prompt=blobs.get(record.prompt), reply=reply)


LEAST_PRIOR = 1e-6

_CHANGE: msgspec.json.Decoder[Patch | WholeSource] = msgspec.json.Decoder(Patch | WholeSource)


def _encode_change(change: Patch | WholeSource) -> str:
    try:
        return msgspec.json.encode(change).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(storable(msgspec.to_builtins(change))).decode()
