"""A model that says again what it said before, for replaying a search without a model or money."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from mctskernel.core.proposer import Exchange, Loss
from mctskernel.edits.llm.messages import encode
from mctskernel.edits.llm.model import Call


@dataclass(frozen=True)
class Recorded:
    """An exchange about the kernel whose identity is `subject`."""

    subject: str
    exchange: Exchange


class Recording:
    """Answers calls from recorded exchanges, each of which is used once.

    A call gets the next exchange with its very prompt, else the next one about its subject, for its purpose and with
    its expert: measured times in a prompt differ between a search and its repetition. `answered` are exchanges that
    a search which goes on has had from this recording before.
    """

    def __init__(self, recorded: Iterable[Recorded], answered: Iterable[Recorded] = ()) -> None:
        self._recorded = tuple(recorded)
        self._used = [False] * len(self._recorded)
        self._by_prompt = _queues(self._recorded, _prompt_key)
        self._by_subject = _queues(self._recorded, _subject_key)
        self._lock = threading.Lock()
        for each in answered:
            self._next(each)

    def complete(self, call: Call) -> Exchange:
        """The recorded exchange, free of charge; one with a problem if there is none."""
        prompt = encode(call.messages)
        asked = Exchange(
            call.purpose, call.model, prompt, reply="", expert=call.expert, recorded=True, requests=0
        )
        with self._lock:
            found = self._next(Recorded(call.subject, asked))
        if found is None:
            whose = f" with the expert {call.expert}" if call.expert else ""
            problem = f"The recording has no such call ({call.purpose}{whose})."
            return replace(asked, problem=problem, loss=Loss.NO_REPLY)
        return replace(found, prompt=prompt, dollars=0.0, seconds=0.0, recorded=True, requests=0)

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def _next(self, wanted: Recorded) -> Exchange | None:
        for queue in (
            self._by_prompt.get(_prompt_key(wanted), _NONE),
            self._by_subject.get(_subject_key(wanted), _NONE),
        ):
            while queue:
                number = queue.popleft()
                if not self._used[number]:
                    self._used[number] = True
                    return self._recorded[number].exchange
        return None


_NONE: deque[int] = deque()


def _prompt_key(recorded: Recorded) -> Hashable:
    exchange = recorded.exchange
    return exchange.purpose, exchange.expert, exchange.prompt


def _subject_key(recorded: Recorded) -> Hashable:
    return recorded.subject, recorded.exchange.purpose, recorded.exchange.expert


def _queues(
    recorded: Iterable[Recorded], key: Callable[[Recorded], Hashable]
) -> Mapping[Hashable, deque[int]]:
    """The numbers of exchanges by a key, in their order."""
    queues: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for number, each in enumerate(recorded):
        queues[key(each)].append(number)
    return queues
