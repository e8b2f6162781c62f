"""A dialogue with a model: it is asked, its reply is read, and what doesn't fit goes back to it once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mctskernel.core.edit import Edit
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Dropped, Exchange, Loss, Proposals, Purpose
from mctskernel.edits.llm.model import Call, Model
from mctskernel.edits.llm.prompt import messages_to_mend
from mctskernel.edits.llm.replies import Reading, read_reply
from mctskernel.edits.llm.wording import quoted

WORTH_SENDING_BACK = frozenset({Loss.UNREADABLE, Loss.WRONG_SCHEMA, Loss.CUT_OFF})
"""Losses of a whole reply that a model may avoid when it hears of them."""


def converse(model: Model, call: Call, kernel: Kernel, limit: int) -> Proposals:
    """At most `limit` edits of a kernel from one or two exchanges, with everything that was lost on the way.

    An edit that fits only once it was sent back is the second exchange's; what it was before is among the losses.
    """
    exchange = model.complete(call)
    reading = _read(exchange, kernel, limit)
    asked = _proposals((reading,), (exchange,))
    problems = _problems(reading)
    if not problems:
        return asked
    messages = messages_to_mend(call.messages, exchange.reply, problems)
    second = model.complete(replace(call, purpose=Purpose.MEND, messages=messages))
    room = max(limit - len(reading.edits), 1)
    return _proposals((reading, _read(second, kernel, room)), (exchange, second))


def merged(proposals: Iterable[Proposals]) -> Proposals:
    """Several replies as one, with the exchanges of all."""
    edits: list[Edit] = []
    exchanges: list[Exchange] = []
    dropped: list[Dropped] = []
    remarks: list[str] = []
    for each in proposals:
        edits.extend(_shifted(edit, len(exchanges)) for edit in each.edits)
        exchanges.extend(each.exchanges)
        dropped.extend(each.dropped)
        remarks.extend(each.remarks)
    return Proposals(tuple(edits), remarks=tuple(remarks), exchanges=tuple(exchanges), dropped=tuple(dropped))


def _read(exchange: Exchange, kernel: Kernel, limit: int) -> Reading:
    """What an exchange says. That a reply isn't whole is a loss which stands for those of reading what is there."""
    if not exchange.reply.strip():
        loss = exchange.loss or (Loss.NO_REPLY if exchange.problem else Loss.EMPTY)
        return Reading(dropped=(Dropped(loss, exchange.problem or "The reply was empty."),))
    reading = read_reply(exchange.reply, kernel, limit)
    if exchange.loss is None:
        return reading
    return replace(reading, dropped=(Dropped(exchange.loss, exchange.problem or f"{exchange.loss}."),))


def _problems(reading: Reading) -> list[str]:
    """What the model is to be told, in sentences; empty where there is nothing that it could do better."""
    unfit = [f"The edit {quoted(each.edit.title)}: {each.reason}" for each in reading.unfit]
    if unfit or reading.edits:
        return unfit
    return [each.reason for each in reading.dropped if each.loss in WORTH_SENDING_BACK]


def _proposals(readings: Sequence[Reading], exchanges: tuple[Exchange, ...]) -> Proposals:
    edits = [
        replace(edit, exchange=number) for number, reading in enumerate(readings) for edit in reading.edits
    ]
    dropped = [
        loss
        for reading in readings
        for loss in (*reading.dropped, *(Dropped(each.loss, each.reason) for each in reading.unfit))
    ]
    surplus = sum(reading.surplus for reading in readings)
    remarks = (f"{surplus} edits were more than was asked for.",) if surplus else ()
    return Proposals(tuple(edits), remarks=remarks, exchanges=exchanges, dropped=tuple(dropped))


def _shifted(edit: Edit, by: int) -> Edit:
    return edit if edit.exchange is None else replace(edit, exchange=edit.exchange + by)
