"""Correspondence: proposers that take long are asked beside the evaluations, several at a time."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer


class Correspondence(Protocol):
    """Requests that wait for their replies, by node."""

    @property
    def capacity(self) -> int:
        """How many requests can wait at the same time."""
        ...

    def send(self, request: ProposalRequest) -> None:
        """Ask about the request's node, which isn't waiting already."""
        ...

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:
        """The replies that came since the last call, waiting for the first of them; empty after `timeout` seconds."""
        ...


class Correspondents:
    """Asks a proposer from a thread a request.

    What the proposer raises, which is a mistake of the caller's and not of a model's, is raised by `collect`. A thread
    that waits for a server ends with the process, however long the server takes.
    """

    def __init__(self, proposer: Proposer, capacity: int) -> None:
        self._proposer = proposer
        self._capacity = capacity
        self._waiting: set[int] = set()
        self._replies: queue.SimpleQueue[tuple[int, Proposals | BaseException]] = queue.SimpleQueue()

    @property
    def capacity(self) -> int:
        """How many requests can wait at the same time."""
        return self._capacity

    def send(self, request: ProposalRequest) -> None:
        """Ask about the request's node, which isn't waiting already."""
        if request.node in self._waiting:
            raise ValueError(f"Node {request.node} waits for a reply already.")
        self._waiting.add(request.node)
        name = f"proposals for node {request.node}"
        threading.Thread(target=self._ask, args=(request,), name=name, daemon=True).start()

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:
        """The replies that came since the last call, waiting for the first of them; empty after `timeout` seconds."""
        found: list[tuple[int, Proposals]] = []
        while self._waiting:
            try:
                node, reply = self._replies.get(timeout=0.0 if found or timeout <= 0 else timeout)
            except queue.Empty:
                break
            self._waiting.discard(node)
            if isinstance(reply, BaseException):
                raise reply
            found.append((node, reply))
        return found

    def _ask(self, request: ProposalRequest) -> None:
        try:
            reply: Proposals | BaseException = self._proposer.propose(request)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that searches
            reply = error
        self._replies.put((request.node, reply))
