"""The parts in which a run goes to a graphical host: the document at once, the rest when it is looked at.

Each part is JSON, compressed by gzip, which browsers inflate by themselves (`DecompressionStream`).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cached_property

import msgspec

from mctskernel.report.details import Detailer
from mctskernel.report.document import Document, view_document
from mctskernel.report.story import story
from mctskernel.report.view import View
from mctskernel.tree.journal import read_events
from mctskernel.tree.selection_account import Account, selection_accounts

NODES_A_PART = 32
"""Nodes whose details travel together in a report: few enough to come at once, many enough to be compressed well."""

SMALLEST, SOONEST = 9, 1
"""Levels of gzip: for a file that is kept, and for a notebook that waits."""

DOCUMENT = "document"
STORY = "story"
DETAILS = "details"
DETAIL = "detail"
LINES = "lines"
COUNTERS = "counters"
ACCOUNTS = "accounts"
ACCOUNT = "account"

FITTED = "edit-model"
"""The strategy whose accounts cost a model each."""

MOST_ACCOUNTS = 256
"""Of so many nodes a report tells why they were made; the model of edits has to be fitted again for many of them."""


class PartError(LookupError):
    """A part that the run doesn't have."""


class Parts:
    """The parts of one run, each made when it is first asked for."""

    def __init__(self, view: View, document: Document | None = None) -> None:
        self.view = view
        self.document = document or view_document(view)
        self._detailer = Detailer(view)
        self._makers: dict[str, Callable[[str], object]] = {
            DOCUMENT: lambda _: self.document,
            STORY: lambda _: story(self.view, self.document.headline.best),
            DETAILS: self._details,
            DETAIL: lambda node: self._detailer.details(self._node(node)),
            LINES: self._lines,
            COUNTERS: lambda _: self._counters(),
            ACCOUNTS: self._accounts,
            ACCOUNT: self._account,
        }

    def names(self) -> Iterator[str]:
        """The names of all parts, in the order in which they are to be made: lines follow the details that use them."""
        yield DOCUMENT
        yield STORY
        yield COUNTERS
        for number in range(-(-len(self.document.nodes) // NODES_A_PART)):
            yield f"{DETAILS}/{number}"
            if self.document.accounts:
                yield f"{ACCOUNTS}/{number}"
        yield f"{LINES}/0"

    def part(self, name: str, level: int) -> bytes:
        """A part, compressed at a level of gzip. Raises PartError, and what reading a run may raise."""
        kind, _, number = name.partition("/")
        if kind not in self._makers:
            raise PartError(f"The run has no part '{name}'.")
        found = msgspec.json.encode(self._makers[kind](number))
        return gzip.compress(found, compresslevel=level, mtime=0)

    def _details(self, number: str) -> object:
        return [self._detailer.details(node) for node in self._nodes(number)]

    def _account(self, number: str) -> object:
        """Why one node was made; None of the root."""
        return next(map(_rounded, self._accounts_of({self._node(number)})), None)

    def _accounts(self, number: str) -> object:
        """Why the nodes of a part were made; None of the root, and of those that have to do without."""
        return [self._foremost_accounts.get(node) for node in self._nodes(number)]

    @cached_property
    def _foremost_accounts(self) -> dict[int, Account]:
        return {account.node: _rounded(account) for account in self._accounts_of(self._accounted())}

    def _accounts_of(self, nodes: Collection[int]) -> Iterator[Account]:
        return selection_accounts(read_events(self.view.folder.journal), nodes)

    def _accounted(self) -> set[int]:
        """All nodes where that costs little; else the best path and what was visited most."""
        nodes = self.document.nodes
        if len(nodes) <= MOST_ACCOUNTS or self.view.tree.policy.strategy != FITTED:
            return set(range(len(nodes)))
        by_visits = sorted(nodes, key=lambda node: -node.visits)
        return {*self.document.best_path, *(node.id for node in by_visits[:MOST_ACCOUNTS])}

    def _nodes(self, number: str) -> range:
        start = _whole(number) * NODES_A_PART
        nodes = range(len(self.document.nodes))[start : start + NODES_A_PART]
        if not nodes:
            raise PartError(f"There is no part {number} of the nodes.")
        return nodes

    def _node(self, number: str) -> int:
        node = _whole(number)
        if node >= len(self.document.nodes):
            raise PartError(f"There is no node {node}.")
        return node

    def _lines(self, number: str) -> object:
        """The lines from this number on that the details so far are made of."""
        return self._detailer.sources.lines[_whole(number) :]

    def _counters(self) -> object:
        """For each counter the values of all nodes, None where it wasn't read."""
        evaluations = [node.evaluation for node in self.view.tree.nodes]
        return {
            name: [_short(each.counters.get(name)) if each else None for each in evaluations]
            for name in self.document.counters
        }


def _rounded(account: Account) -> Account:
    """With terms of as many digits as are shown."""
    return replace(
        account,
        choices=tuple(
            replace(
                choice,
                rivals=tuple(
                    replace(rival, terms=tuple(float(f"{term:.4g}") for term in rival.terms))
                    for rival in choice.rivals
                ),
            )
            for choice in account.choices
        ),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise PartError(f"'{text}' is not the number of a part.")
    return int(text)
