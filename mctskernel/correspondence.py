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

    @property
    def expects_replies(self) -> bool:
        """Whether a reply comes if one waits for it."""
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

    @property
    def expects_replies(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiting)

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


class Absent:
    """The proposer of a search whose edits come from outside: whatever it is asked, it says nothing."""

    name = "outside"

    def propose(self, request: ProposalRequest) -> Proposals:  # noqa: ARG002 - a Proposer
        """No edits."""
        return Proposals(())


class Mailbox:
    """Requests for a proposer that isn't part of this program: they lie here until someone comes with answers."""

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
        """Whether an answer hasn't been collected."""
        return bool(self._replies)

    def send(self, request: ProposalRequest) -> None:
        """Put a request in."""
        self._requests[request.node] = request

    def answer(self, node: int, reply: Proposals) -> None:
        """Answer the request about a node. Raises KeyError without one."""
        del self._requests[node]
        self._replies.append((node, reply))

    def clear(self) -> None:
        """Throw all requests away."""
        self._requests.clear()

    def collect(self, timeout: float) -> list[tuple[int, Proposals]]:  # noqa: ARG002 - a Correspondence
        """The answers since the last call; nothing is waited for."""
        found, self._replies = self._replies, []
        return found
