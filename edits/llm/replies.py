"""What a model's reply says: edits that fit the kernel, edits that don't, and what was lost.

A reply is hostile input: whatever its text, reading it takes bounded time and raises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from mctskernel.core.edit import Edit
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Dropped, Loss
from mctskernel.edits.places import Match


@dataclass(frozen=True)
class Unfit:
    """An edit that can't be applied as it is written, and why, in words for the model that wrote it."""

    edit: Edit
    loss: Loss
    reason: str


@dataclass(frozen=True)
class Reading:
    """A reply: edits that apply, in its order, and how closely the patch of each matched; the rest by its fate.

    `unfit` edits are worth sending back once. `surplus` are edits beyond the limit, which weren't looked at.
    """

    edits: tuple[Edit, ...] = ()
    matches: tuple[Match, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    surplus: int = 0


def read_reply(text: str, kernel: Kernel, limit: int) -> Reading:
    """The edits of a kernel that a reply proposes: `limit` at most, in any format of `edits/prompts/reply_format.md`.

    Their `proposer` and `exchange` are left to the caller. A reply with none has one loss at least, or surplus.
    """
    return Reading(dropped=(Dropped(Loss.UNREADABLE, "The reply could not be read."),))
