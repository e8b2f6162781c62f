"""A judge: a model that says before anything runs which edits are worth it.

What it finds hopeless is not thrown away, but waits behind everything else: how often the judge was right can then be
counted (`mctskernel.report.judgements`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mctskernel.core.edit import Edit
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import ProposalRequest, Proposals, Proposer, Purpose
from mctskernel.edits.llm.feedback import Feedback
from mctskernel.edits.llm.model import Call, Model
from mctskernel.edits.llm.prompt import Judged, messages_to_judge
from mctskernel.edits.llm.schema import VERDICTS_SCHEMA
from mctskernel.edits.llm.tolerant_json import Torn, read_json
from mctskernel.edits.llm.wording import plain
from mctskernel.edits.patch import PatchError, apply, unified_diff

MOST_JUDGED = 12
"""Edits of one reply that are judged, those with the greatest priors: rules propose dozens."""

LEAST_WEIGHT = 1 / 64
"""Of the prior of an edit without any promise: it waits, and is still tried before the search gives up."""


@dataclass(frozen=True)
class Verdict:
    """The promise of an edit of a reply, by its place: the probability that it makes the kernel faster."""

    edit: int
    promise: float


@dataclass(frozen=True)
class JudgedProposer:
    """What another proposer says, weighed by a judge; `judge` is its model's name, empty for the configured one."""

    proposer: Proposer
    model: Model
    judge: str = ""
    feedback: Feedback = Feedback.DIAGNOSIS

    @property
    def name(self) -> str:
        """That of the other proposer: a judge proposes nothing."""
        return self.proposer.name

    def propose(self, request: ProposalRequest) -> Proposals:
        """The other's reply, its edits with promises and priors that follow them.

        Where there is nothing to choose from, nobody is asked. A judge that doesn't answer changes nothing.
        """
        reply = self.proposer.propose(request)
        judged = _most_likely(reply.edits)
        if len(judged) < 2:
            return reply
        described = [_described(request.kernel, reply.edits[place]) for place in judged]
        call = Call(
            Purpose.JUDGE,
            messages_to_judge(request, described, self.feedback),
            schema=VERDICTS_SCHEMA,
            model=self.judge,
            temperature=0.0,
            seed=request.seed % (1 << 31),
            subject=request.kernel.identity,
        )
        exchange = self.model.complete(call)
        promises = {judged[each.edit]: each.promise for each in read_verdicts(exchange.reply, len(judged))}
        named = read_bottleneck(exchange.reply)
        return replace(
            reply,
            edits=weighed(reply.edits, promises),
            exchanges=(*reply.exchanges, exchange),
            remarks=(*reply.remarks, f"The judge: {named}") if named else reply.remarks,
        )


def weighed(edits: Sequence[Edit], promises: Mapping[int, float]) -> tuple[Edit, ...]:
    """Edits with their promises, by place, and priors in proportion; one without is as promising as their mean."""
    if not promises:
        return tuple(edits)
    mean = math.fsum(promises.values()) / len(promises)
    return tuple(
        replace(
            edit,
            prior=edit.prior * max(promises.get(place, mean), LEAST_WEIGHT),
            promise=promises.get(place),
        )
        for place, edit in enumerate(edits)
    )


def read_verdicts(reply: str, count: int) -> tuple[Verdict, ...]:
    """The verdicts of a reply on `count` edits, each edit's first; whatever else it holds is passed over."""
    found: dict[int, Verdict] = {}
    verdicts = _object_in(reply).get("verdicts")
    for each in verdicts if isinstance(verdicts, list) else ():
        verdict = _verdict(each, count)
        if verdict is not None:
            found.setdefault(verdict.edit, verdict)
    return tuple(found.values())


def read_bottleneck(reply: str) -> str:
    """What the reply says binds the kernel, in a line; empty if it doesn't."""
    named = _object_in(reply).get("bottleneck")
    return plain(named) if isinstance(named, str) else ""


def _verdict(value: object, count: int) -> Verdict | None:
    members = _whole(value)
    if not isinstance(members, dict):
        return None
    edit, promise = members.get("edit"), members.get("promise")
    if isinstance(edit, bool) or not isinstance(edit, int | float) or edit not in range(count):
        return None
    if isinstance(promise, bool) or not isinstance(promise, int | float) or not 0 <= promise <= 1:
        return None
    return Verdict(int(edit), float(promise))


def _object_in(reply: str) -> Mapping[str, object]:
    """The first object of a text, whatever stands around it."""
    start = reply.find("{")
    if start < 0:
        return {}
    value = _whole(read_json(reply, start).value)
    return {name: _whole(each) for name, each in value.items()} if isinstance(value, dict) else {}


def _whole(value: object) -> object:
    """A value, or what there is of one that was cut off."""
    return value.value if isinstance(value, Torn) else value


def _most_likely(edits: Sequence[Edit]) -> list[int]:
    """The places of the edits to be judged, in the order of the reply."""
    ranked = sorted(range(len(edits)), key=lambda place: (-edits[place].prior, place))
    return sorted(ranked[:MOST_JUDGED])


def _described(kernel: Kernel, edit: Edit) -> Judged:
    try:
        diff = unified_diff(kernel.source, apply(kernel, edit).source)
    except PatchError as error:
        diff = f"It can't be applied: {error}"
    return Judged(edit.title, str(edit.category), edit.rationale, diff)
