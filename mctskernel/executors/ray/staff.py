"""The evaluators that a search has in a cluster: started where there is room, and dismissed when they are lost."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mctskernel.executors.ray.actor import END, NONE_BEGUN, PRESENCE, Actor
from mctskernel.executors.ray.cluster import Cluster
from mctskernel.executors.ray.messages import Broken, Opening, Ready, encode, reply_of
from mctskernel.executors.ray.roster import FAILURES, Place, Plan, Role, openings
from mctskernel.executors.room import compilers_for

END_SECONDS = 3.0
"""How long evaluators may take to tidy up when a search ends, before they are killed."""

Event = Callable[[], None]

# Ray's types don't know of an actor's groups of calls.
_REMOTE: Any = ray.remote(concurrency_groups={END: 1, PRESENCE: 1})(Actor)  # type: ignore[call-overload]


@dataclass
class Member:
    """An evaluator: what it does and where, when it was heard of last, what it has begun, and whether it is open."""

    role: Role
    node: str
    handle: Any
    heard: float
    begun: int = NONE_BEGUN
    joined: bool = False

    @property
    def place(self) -> Place:
        """What it takes up."""
        return self.node, self.role


class Staff:
    """The evaluators of one search. For one thread, which runs the `events` that come from others.

    `opening` is what they open, whatever their role. Each lets itself be heard of every `pulse` seconds, whatever it
    does. `joined` is told of every one that is open, `lost` of every one whose process has ended, and why.
    """

    def __init__(
        self,
        cluster: Cluster,
        opening: Opening,
        workers: int,
        events: Callable[[Event], None],
        *,
        pulse: float,
        joined: Callable[[int, Role], None],
        lost: Callable[[int, str], None],
    ) -> None:
        self._cluster = cluster
        self._opening = opening
        self._workers = workers
        self._events = events
        self._pulse = pulse
        self._joined, self._lost = joined, lost
        self._numbers = itertools.count()
        self._members: dict[int, Member] = {}
        self._failures: Counter[Place] = Counter()
        self._first: Ready | None = None
        self._openings: dict[Role, Any] = {}
        self._left_out: dict[str, None] = {}
        self.complaint = ""

    @property
    def first(self) -> Ready | None:
        """What the first evaluator that holds a device said, which all others have to agree with."""
        return self._first

    @property
    def expects_more(self) -> bool:
        """Whether any evaluator is about to open."""
        return any(not each.joined for each in self._members.values())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Where the evaluators are, what their devices lack, and which were left out."""
        said = self._first.remarks if self._first is not None else ()
        return (self._cluster.remark, *said, *self._left_out)

    def handle(self, number: int) -> Any:
        """Ray's handle of an evaluator."""
        return self._members[number].handle

    def heard(self, number: int) -> float:
        """The moment at which an evaluator was heard of last."""
        return self._members[number].heard

    def has_begun(self, number: int, call: int) -> bool:
        """Whether an evaluator is known to have begun a call; one that was lost before has not."""
        member = self._members.get(number)
        return member is not None and member.begun >= call

    def look(self) -> list[int]:
        """Start evaluators where there is room for them; the numbers of those whose nodes are gone."""
        nodes = self._cluster.nodes()
        names = {node.name for node in nodes}
        taken = Counter(member.place for member in self._members.values())
        left_alone = Counter({place: count // FAILURES for place, count in self._failures.items()})
        for node, role in openings(nodes, taken + left_alone, self._plan()):
            self._start(node, role)
        return [number for number, member in self._members.items() if member.node not in names]

    def failed(self, number: int, complaint: str) -> None:
        """Dismiss an evaluator that can't be used; in the end its place is left alone."""
        member = self._members.get(number)
        if member is not None:
            self._failures[member.place] += 1
            self.complaint = complaint
            if self._failures[member.place] % FAILURES == 0:
                self._left_out[
                    f"An evaluator of the cluster was left out after {FAILURES} failures: {complaint}"
                ] = None
            self.dismiss(number)

    def dismiss(self, number: int) -> None:
        """Have nothing to do with an evaluator any more."""
        member = self._members.pop(number, None)
        if member is not None:
            ray.kill(member.handle)

    def close(self) -> None:
        """Have every evaluator tidy up and end."""
        handles = [member.handle for member in self._members.values()]
        ends = [handle.end.options(concurrency_group=END).remote() for handle in handles]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
        for handle in handles:
            ray.kill(handle)
        self._members.clear()

    def _plan(self) -> Plan:
        if self._opening.kind != "gpu":
            return Plan((Role.EVALUATOR,), {Role.EVALUATOR: self._workers} if self._workers else {})
        judges = sum(each.role is Role.JUDGE and each.joined for each in self._members.values())
        most = self._workers or compilers_for(max(1, judges), self._opening.language)
        # What compilers build for is known when a GPU is.
        return Plan((Role.JUDGE, Role.COMPILER), {Role.COMPILER: most if self._opening.target else 0})

    def _start(self, node: str, role: Role) -> None:
        number = next(self._numbers)
        if role not in self._openings:
            self._openings[role] = ray.put(encode(msgspec.structs.replace(self._opening, role=role.value)))
        actor = _REMOTE.options(
            # Who holds a GPU takes no CPU from those that build for it.
            num_cpus=0 if role is Role.JUDGE else 1,
            num_gpus=1 if role is Role.JUDGE else 0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        handle = actor.remote(self._openings[role])
        self._members[number] = Member(role, node, handle, time.monotonic())
        greeting = handle.greet.remote().future()
        greeting.add_done_callback(lambda done: self._events(partial(self._greeted, number, done)))
        self._attend(number, handle)

    def _attend(self, number: int, handle: Any) -> None:
        presence = handle.stay.options(concurrency_group=PRESENCE).remote(self._pulse).future()
        presence.add_done_callback(lambda done: self._events(partial(self._attended, number, done)))

    def _greeted(self, number: int, greeting: Future[object]) -> None:
        member = self._members.get(number)
        if member is None:
            return
        try:
            reply = reply_of(greeting.result())
        except Exception as error:  # noqa: BLE001 - whatever Ray or the node has, it is no evaluator
            reply = Broken(first_line(error))
        match reply:
            case Ready():
                self._compare(number, member, reply)
            case Broken(message):
                self.failed(number, message)
            case _:
                self.failed(number, "It said what it wasn't asked.")

    def _attended(self, number: int, presence: Future[int]) -> None:
        """It is there; or its process has ended, unasked. One that never opened says why by its greeting."""
        member = self._members.get(number)
        if member is None:
            return
        error = presence.exception()
        if error is None:
            member.heard = time.monotonic()
            member.begun = presence.result()
            self._attend(number, member.handle)
        elif member.joined:
            self._lost(number, first_line(error))

    def _compare(self, number: int, member: Member, ready: Ready) -> None:
        """Let an evaluator join whose device is of the first one's kind."""
        if member.role is not Role.COMPILER:
            self._first = self._first or ready
            if ready.fingerprint != self._first.fingerprint:
                self._failures[member.place] += FAILURES
                self._left_out[_difference(self._first.fingerprint, ready.fingerprint)] = None
                self.dismiss(number)
                return
            self._opening = msgspec.structs.replace(
                self._opening, target=ready.fingerprint.get("architecture", "")
            )
        member.joined = True
        self._joined(number, member.role)


def _difference(first: dict[str, str], other: dict[str, str]) -> str:
    name = next(name for name in sorted(first.keys() | other.keys()) if first.get(name) != other.get(name))
    return (
        f"An evaluator of the cluster was left out, whose times can't be compared with the others': its {name} is "
        f"{other.get(name, 'nothing')}, theirs {first.get(name, 'nothing')}."
    )


def first_line(error: BaseException | None) -> str:
    """The beginning of what Ray says, which goes on for a page."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
