"""Async proposers: a proposer that takes long is asked while evaluations go on, several requests at a time."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer


class AsyncProposer(Protocol):
    """Requests that wait for their replies, by node."""

    @property
    def capacity(self) -> int:
        """How many requests can wait at the same time."""

    @property
    def expects_replies(self) -> bool:
        """Whether waiting brings a reply."""

    def send(self, request: ProposalRequest) -> None:
        """Ask about the request's node, which isn't waiting already."""

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:
        """The replies since the last call, waiting for the first of them; empty after `timeout` seconds."""


class ThreadedProposer:
    """Calls a proposer in a thread for each request.

    An exception of the proposer is a mistake of the caller's, not of a model's: `collect` raises it. A thread that
    waits for a server ends with the process, however long the server takes.
    """

    def __init__(self, proposer: Proposer, capacity: int) -> None:
        self.capacity = capacity
        self._proposer = proposer
        self._waiting: set[int] = set()
        self._replies: queue.SimpleQueue[tuple[int, Proposals | BaseException]] = queue.SimpleQueue()

    @property
    def expects_replies(self) -> bool:
        return bool(self._waiting)

    def send(self, request: ProposalRequest) -> None:
        if request.node in self._waiting:
            raise ValueError(f"Node {request.node} waits for a reply already.")
        self._waiting.add(request.node)
        name = f"proposals for node {request.node}"
        threading.Thread(target=self._ask, args=(request,), name=name, daemon=True).start()

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:
        """The replies since the last call, waiting for the first of them; empty after `timeout` seconds."""
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
        except BaseException as error:  # noqa: BLE001 - whatever it is, `collect` raises it in the thread that searches
            reply = error
        self._replies.put((request.node, reply))


class NoProposer:
    """The proposer of a search whose edits come from another program: it proposes nothing."""

    def propose(self, request: ProposalRequest) -> Proposals:  # noqa: ARG002 - the signature of Proposer
        """No edits."""
        return Proposals(())


class ExternalQueue:
    """Requests for a proposer outside this program, which stay here until they are answered."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._requests: dict[int, ProposalRequest] = {}
        self._replies: list[tuple[int, Proposals]] = []

    @property
    def requests(self) -> tuple[ProposalRequest, ...]:
        """Those without an answer, the oldest first."""
        return tuple(self._requests.values())

    @property
    def expects_replies(self) -> bool:
        return bool(self._replies)

    def send(self, request: ProposalRequest) -> None:
        self._requests[request.node] = request

    def answer(self, node: int, reply: Proposals) -> None:
        """Answer the request about a node. Raises KeyError without one."""
        del self._requests[node]
        self._replies.append((node, reply))

    def clear(self) -> None:
        self._requests.clear()

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:  # noqa: ARG002 - the signature of AsyncProposer
        """The answers since the last call; never waits."""
        found, self._replies = self._replies, []
        return found
