"""Whose turn it is: items of clients that wait for one machine, the next from whoever had the least of it lately.

Start-time fair queuing (Goyal, Vin and Cheng, 1996) by seconds: each client has an account of what its items took.
Virtual time is the account of the client that was served last; a client that comes back after a rest goes on from
there, so that nobody saves up turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

FIRST_GUESS = 1.0
"""Seconds that an item is taken for before any has finished."""

_WEIGHT = 0.1
"""Of the newest item in the running mean of what one takes."""

Item = TypeVar("Item")


@dataclass
class _Account(Generic[Item]):
    seconds: float = 0.0
    running: int = 0
    waiting: deque[Item] = field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting


@dataclass(frozen=True)
class Turn(Generic[Item]):
    """An item whose turn it is; its client is charged these seconds until it is known what it took."""

    client: str
    item: Item
    charged: float


class FairQueue(Generic[Item]):
    """Waiting items by client. Who is always hungry gets an equal share of the seconds, whatever others ask for."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account[Item]] = {}
        self._virtual_time = 0.0
        self._typical = FIRST_GUESS

    def __len__(self) -> int:
        return sum(len(account.waiting) for account in self._accounts.values())

    def put(self, client: str, item: Item) -> None:
        """Let an item wait, behind its client's others."""
        self._hungry(client).waiting.append(item)

    def put_back(self, client: str, item: Item) -> None:
        """Let an item wait again, before its client's others."""
        self._hungry(client).waiting.appendleft(item)

    def take(self, can_run: Callable[[Item], bool]) -> Turn[Item] | None:
        """The next item that can run now, if any can; `settle` what it took in the end."""
        for client, account in sorted(self._accounts.items(), key=lambda each: each[1].seconds):
            position = next((n for n, item in enumerate(account.waiting) if can_run(item)), None)
            if position is not None:
                item = account.waiting[position]
                del account.waiting[position]
                self._virtual_time = max(self._virtual_time, account.seconds)
                account.seconds += self._typical
                account.running += 1
                return Turn(client, item, self._typical)
        return None

    def settle(self, turn: Turn[Item], seconds: float) -> None:
        """Charge a turn's client what its item took, in place of what was expected."""
        account = self._accounts[turn.client]
        account.seconds += seconds - turn.charged
        account.running -= 1
        self._typical += _WEIGHT * (seconds - self._typical)

    def drop(self, unwanted: Callable[[Item], bool]) -> None:
        """Take items out that nobody wants any more; they cost nothing."""
        for account in self._accounts.values():
            account.waiting = deque(item for item in account.waiting if not unwanted(item))

    def _hungry(self, client: str) -> _Account[Item]:
        account = self._accounts.setdefault(client, _Account())
        if account.idle:
            account.seconds = max(account.seconds, self._virtual_time)
        return account
