"""Which sessions may have processes: places on the machine are few, and whoever is idle gives up its own."""

from __future__ import annotations

from collections.abc import Sequence

from mctskernel.serving import refusals
from mctskernel.serving.session import Session, Standing
from mctskernel.serving.settings import Limits


def to_rest(sessions: Sequence[Session], client: str, limits: Limits) -> Session | None:
    """The idle session whose process must end before one of this client's can start; None where there is room.

    Raises RefusalError where none is idle.
    """
    with_process = [each for each in sessions if each.has_process]
    own = [each for each in with_process if each.client == client]
    if len(own) >= limits.client_sessions:
        return _idle(own, f"{limits.client_sessions} of your sessions are at work: wait, or close one.")
    if len(with_process) >= limits.sessions:
        return _idle(with_process, "As many sessions are at work as this server takes.")
    return None


def check_number(sessions: Sequence[Session], client: str, limits: Limits) -> None:
    """Refuse a client that keeps too many sessions already, with or without processes."""
    if sum(each.client == client for each in sessions) >= limits.client_kept:
        raise refusals.too_much(f"You have {limits.client_kept} sessions: close one.", 10.0)


def check_queue(sessions: Sequence[Session], session: Session, limits: Limits) -> None:
    """Refuse another kernel of a session whose client, or whose server, has as much to do as may be."""
    if session.ledger.kept_bytes >= limits.result_bytes:
        raise refusals.too_much("Fetch and acknowledge results first: as many are kept as may be.")
    if sum(each.burden for each in sessions if each.client == session.client) >= limits.client_queue:
        raise refusals.too_much(f"Your queue is full: {limits.client_queue} kernels and results at a time.")
    if sum(each.queued + len(each.running) for each in sessions) >= limits.queue:
        raise refusals.too_much("The queue of this server is full.", 5.0)


def _idle(sessions: Sequence[Session], otherwise: str) -> Session:
    idle = [each for each in sessions if each.standing is Standing.OPEN and not each.has_work]
    if not idle:
        raise refusals.too_much(otherwise, 10.0)
    return min(idle, key=lambda each: each.used)
