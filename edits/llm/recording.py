"""A model that answers from the exchanges of a recorded search."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import msgspec

from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.model import Call, encode


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
        asked = Exchange(call.purpose, "", prompt, reply="", expert=call.expert, recorded=True, requests=0)
        with self._lock:
            found = self._next(Recorded(call.subject, asked))
        if found is None:
            expert = f" with the expert {call.expert}" if call.expert else ""
            problem = f"The recording has no such call ({call.purpose}{expert})."
            return msgspec.structs.replace(asked, problem=problem, loss=Loss.NO_REPLY)
        return msgspec.structs.replace(
            found, prompt=prompt, dollars=0.0, seconds=0.0, recorded=True, requests=0
        )

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
