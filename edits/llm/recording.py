"""Models that answer from what was kept: a cache folder for later searches, or the exchanges of a recorded one."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE
from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.model import Call, LLMOptions, ModelError, OpenModel, encode


class CachedModel:
    """A model that is called only where a folder has no whole reply to an identical call."""

    def __init__(self, model: OpenModel, options: LLMOptions, folder: Path) -> None:
        """Make the folder, which only its owner can read. Raises ModelError if that fails."""
        self._model = model
        self._options = options
        self._folder = folder
        self.close = model.close
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            model.close()
            raise ModelError(f"The --cache folder {folder.name} can't be made: {error.strerror}.") from None

    def complete(self, call: Call) -> Exchange:
        """Return the exchange of an identical call, free of charge, or else the model's."""
        file = self._file(call)
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
        except (OSError, *UNDECODABLE):
            # Nothing was kept, or the file is damaged: it is written anew.
            exchange = self._model.complete(call)
            if exchange.loss is None and exchange.reply:
                _keep(file, exchange)
            return exchange
        return Exchange(
            purpose=call.purpose,
            model=call.model or self._options.model,
            prompt=encode(call.messages),
            reply=kept.reply,
            expert=call.expert,
            input_tokens=kept.input_tokens,
            output_tokens=kept.output_tokens,
            recorded=True,
            requests=0,
            estimated=kept.estimated,
        )

    def _file(self, call: Call) -> Path:
        """The file of a call, named by all that decides its reply: the same model elsewhere is another model."""
        options = self._options
        identity: dict[str, Any] = {
            "server": options.url,
            "model": call.model or options.model,
            "messages": encode(call.messages),
            "schema": call.schema,
            "reply_format": options.reply_format,
            "temperature": options.temperature if call.temperature is None else call.temperature,
            "seed": call.seed,
            "max_output_tokens": options.max_output_tokens,
        }
        digest = hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"


class _Kept(msgspec.Struct, frozen=True):
    reply: str
    input_tokens: int
    output_tokens: int
    estimated: bool


def _keep(file: Path, exchange: Exchange) -> None:
    """Keep a reply so that it is never seen half-written. A full disk costs the reply later, not the search now."""
    kept = _Kept(exchange.reply, exchange.input_tokens, exchange.output_tokens, exchange.estimated)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, msgspec.json.encode(kept))
    except OSError:
        return


@dataclass(frozen=True)
class Recorded:
    """An exchange about the kernel whose identity is `subject`."""

    subject: str
    exchange: Exchange


class Recording:
    """Answers calls from recorded exchanges, each of which is used once.

    A call gets the next exchange with its very prompt, else the next one about its subject with its purpose and
    expert, because measured times in a prompt differ between a search and its repetition. `answered` are exchanges
    that a resumed search has had from this recording before.
    """

    def __init__(self, recorded: Iterable[Recorded], answered: Iterable[Recorded] = ()) -> None:
        self._recorded = tuple(recorded)
        self._used = [False] * len(self._recorded)
        self._numbers: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for number, each in enumerate(self._recorded):
            for key in _keys(each):
                self._numbers[key].append(number)
        self._lock = threading.Lock()
        for each in answered:
            self._next(each)

    def complete(self, call: Call) -> Exchange:
        """Return the recorded exchange, free of charge; one with a problem if there is none."""
        prompt = encode(call.messages)
        asked = Exchange(
            call.purpose, call.model, prompt, reply="", expert=call.expert, recorded=True, requests=0
        )
        with self._lock:
            found = self._next(Recorded(call.subject, asked))
        if found is None:
            expert = f" with the expert {call.expert}" if call.expert else ""
            problem = f"The recording has no such call ({call.purpose}{expert})."
            return replace(asked, problem=problem, loss=Loss.NO_REPLY)
        return replace(found, prompt=prompt, dollars=0.0, seconds=0.0, recorded=True, requests=0)

    def close(self) -> None:
        """Nothing is open."""

    def _next(self, wanted: Recorded) -> Exchange | None:
        for key in _keys(wanted):
            queue = self._numbers.get(key)
            while queue:
                number = queue.popleft()
                if not self._used[number]:
                    self._used[number] = True
                    return self._recorded[number].exchange
        return None


def _keys(recorded: Recorded) -> tuple[Hashable, Hashable]:
    """By its prompt, and by its subject."""
    exchange = recorded.exchange
    kind = (exchange.purpose, exchange.expert)
    return ("prompt", *kind, exchange.prompt), ("subject", *kind, recorded.subject)
