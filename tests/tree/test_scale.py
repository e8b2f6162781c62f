"""What the engine costs must not grow with the tree: operations and bytes are counted, not seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mctskernel.core.edit import Category, Edit, WholeSource
from mctskernel.core.evaluation import Evaluation, Outcome, Score, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.proposer import Proposals
from mctskernel.experiments.subjects.grown_trees import Growth
from mctskernel.experiments.tree_scale import TREES, bytes_per_node
from mctskernel.tree import bookkeeping, selection
from mctskernel.tree.blobs import MemoryBlobs
from mctskernel.tree.evidence import EvidenceError
from mctskernel.tree.fold import apply, fold
from mctskernel.tree.guidance import Guidance
from mctskernel.tree.journal import Journal, MemoryJournal, read_events, read_tree
from mctskernel.tree.leads import Leads
from mctskernel.tree.legality import TreeError
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch, Try
from mctskernel.tree.selection import Selection
from mctskernel.tree.strategies import mcts
from mctskernel.tree.strategies.strategy import Propose

WALKS = [
    Policy(strategy="mcts", selection=selection, value=value, exploration=0.3, prior="given")
    for selection in ("puct", "uct")
    for value in ("max", "mean")
]


DEEP = Policy(strategy="mcts", selection="puct", value="max", exploration=0.05, prior="given")
"""Explores so little that its walks share a way longer than `backup.SHORT`."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.jsonl", durable=False) as journal:
        yield journal


def grow(growth: Growth, nodes: int) -> Tree:
    while growth.tree.evaluations < nodes:
        assert growth.step()
    return growth.tree


def result(reward: float) -> tuple[Evaluation, Score]:
    return Evaluation(Outcome.OK, Source.MODELLED), Score(reward, reward)


def chain(search: TreeSearch, length: int) -> None:
    """Each node made by an edit of the one before."""
    search.evaluated(search.start(Kernel("0"), Policy(), seed=0), *result(0.0))
    for node in range(length):
        path = tuple(search.tree.lineage(node))
        edit = Edit(Category.TUNING, "next", WholeSource(f"{node + 1}"))
        search.asked(Propose(path))
        search.proposed(Propose(path), Proposals((edit,)))
        made = search.submit(Try(path, 0, edit), Kernel(f"{node + 1}"))
        assert made == node + 1
        search.evaluated(made, *result(0.0))


def test_a_node_weighs_as_much_in_a_large_tree_as_in_a_small_one(journal: Journal) -> None:
    growth = Growth(journal, TREES["uct, mean"])
    grow(growth, 300)
    small = bytes_per_node(journal.path)
    grow(growth, 900)
    assert bytes_per_node(journal.path) < min(1.3 * small, 1700)


def test_the_journal_of_a_deep_tree_holds_no_paths(tmp_path: Path) -> None:
    def bytes_of(length: int) -> int:
        path = tmp_path / f"{length}.jsonl"
        with Journal(path, durable=False) as journal:
            chain(TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0), length)
        return path.stat().st_size

    assert bytes_of(400) < 4.2 * bytes_of(100)


@pytest.mark.parametrize(
    "policy", [*WALKS, DEEP], ids=lambda policy: f"{policy.selection} {policy.value} {policy.exploration}"
)
@pytest.mark.parametrize("kernels", [3000, 10**9], ids=["transpositions", "a tree"])
def test_leads_change_no_walk(policy: Policy, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside every walk another one is made, which compares all children of every node."""
    levels: Counter[str] = Counter()

    def both(tree: Tree, policy: Policy, guidance: Guidance, leads: Leads) -> Selection | None:
        compared = levels["compared"]
        quick = selection.select(tree, policy, guidance, leads)
        levels["passed over"] += len(quick.path if quick else ()) - levels["compared"] + compared - 1
        assert quick == selection.select(tree, policy, guidance)
        return quick

    def counted(*arguments: Any) -> Any:
        levels["compared"] += 1
        return compare(*arguments)

    compare = selection.compare_children
    monkeypatch.setattr(mcts, "select", both)
    monkeypatch.setattr(selection, "compare_children", counted)
    walks(in_memory(), policy, seed=3, kernels=kernels)
    assert levels["passed over"] > 20


def in_memory(journal: MemoryJournal | None = None) -> TreeSearch:
    return TreeSearch(Tree(), journal or MemoryJournal(), MemoryBlobs(), clock=lambda: 0.0)


def walks(search: TreeSearch, policy: Policy, seed: int, kernels: int = 3000) -> list[Any]:
    """What a search over so many kernels asks: transpositions, and up to three evaluations in flight."""
    rng = np.random.default_rng(seed)
    search.evaluated(search.start(Kernel("0"), policy, seed=0), *result(0.0))
    asked, flying = [], []
    for _ in range(800):
        request = search.ask()
        match request:
            case Propose():
                asked.append(request.path)
                edits = [
                    Edit(Category.TUNING, "t", WholeSource(f"{rng.integers(kernels)}"), prior=rng.random())
                    for _ in range(4)
                ]
                search.proposed(request, Proposals(tuple(edits)))
            case Try(edit=Edit(change=WholeSource(source=source))):
                asked.append((*request.path, request.number))
                node = search.submit(request, Kernel(source))
                flying += [] if node is None else [node]
        while flying and (len(flying) == 3 or rng.random() < 0.8):
            search.evaluated(flying.pop(0), *result(rng.normal()))
    return asked


@pytest.mark.parametrize("policy", WALKS, ids=lambda policy: f"{policy.selection} {policy.value}")
def test_a_replay_counts_what_a_search_kept_up_with(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping, "PIECE", 40)
    journal = MemoryJournal()
    walks(in_memory(journal), policy, seed=3)
    tree, compared = Tree(), 0
    for number, event in enumerate(journal.events, start=1):
        apply(tree, event)
        if len(tree.pending) > 1 and number > 300 * compared:
            assert fold(journal.events[:number]) == tree
            compared += 1
    assert compared > 2
    assert tree.transpositions


def test_traversals_that_came_another_way_are_counted_along_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping, "PIECE", 3)
    journal = MemoryJournal()
    search = in_memory(journal)
    chain(search, 3)
    again = Edit(Category.TUNING, "skip", WholeSource("3"))
    search.proposed(Propose((0,)), Proposals((again,)))
    assert search.submit(Try((0,), 1, again), Kernel("3")) is None
    new = Edit(Category.TUNING, "new", WholeSource("new"))
    search.proposed(Propose((0, 3)), Proposals((new,)))
    made = search.submit(Try((0, 3), 0, new), Kernel("new"))
    assert made == 4
    search.evaluated(made, *result(0.5))
    tree = fold(journal.events)
    assert tree.node_statistics.visits.view.tolist() == [5, 3, 2, 2, 1]
    assert tree.edge_statistics.visits.view.tolist() == [3, 2, 1, 1, 1]
    assert tree == search.tree


def test_edits_in_a_journal_are_those_that_were_new(journal: Journal) -> None:
    def reply(*names: str) -> Proposals:
        return Proposals(tuple(Edit(Category.TUNING, name, WholeSource(name)) for name in names))

    replies = reply("a", "b", "a"), reply("b", "c"), reply("c"), reply("d", "a", "e")
    searches = TreeSearch(Tree(), journal, MemoryBlobs()), in_memory()
    for search in searches:
        search.evaluated(search.start(Kernel("0"), Policy(), seed=0), *result(0.0))
        for each in replies:
            search.proposed(Propose((0,)), each)
    for tree in (searches[0].tree, read_tree(journal.path)):
        edits = tree.nodes[0].edits
        assert (
            [edit.title for edit in edits] == [edit.title for edit in edits[:]] == ["a", "b", "c", "d", "e"]
        )
        assert [edits[number].title for number in (0, 2, -1, -5)] == ["a", "c", "e", "a"]
        assert edits == searches[1].tree.nodes[0].edits
        with pytest.raises(IndexError):
            _ = edits[5]


def test_a_walk_down_a_deep_tree_scores_the_children_of_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = Growth(MemoryJournal(), TREES["puct, max"])
    grow(growth, 1000)
    compare, scored, levels = selection.compare_children, [], []

    def counted(tree: Tree, node: Any, *arguments: Any) -> Any:
        scored.append(node.id)
        return compare(tree, node, *arguments)

    monkeypatch.setattr(selection, "compare_children", counted)
    for _ in range(200):
        request = growth.search.ask()
        assert isinstance(request, Propose | Try)
        levels.append(len(request.path))
        growth.step()
    assert np.mean(levels) > 8
    assert len(scored) < 0.4 * np.sum(levels)


def test_evaluations_are_read_from_the_journal_and_missed_with_a_sentence(
    journal: Journal, tmp_path: Path
) -> None:
    growth = Growth(journal, Policy(strategy="mcts"))
    tree = grow(growth, 20)
    again = read_tree(journal.path)
    assert again == tree
    whole = fold(MemoryJournal().append(event) for event in read_events(journal.path))
    assert whole == tree
    assert [node.evaluation for node in again.nodes] == [node.evaluation for node in whole.nodes]
    journal.path.write_bytes(b"{}\n" * 10_000)
    with pytest.raises(EvidenceError, match=r"journal\.jsonl"):
        _ = tree.nodes[3].evaluation
    journal.path.unlink()
    with pytest.raises(EvidenceError, match=r"journal\.jsonl"):
        _ = tree.nodes[3].evaluation


def test_paths_of_older_journals_are_read(tmp_path: Path, journal: Journal) -> None:
    chain(TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0), 30)
    lines = journal.path.read_text().splitlines()
    events = [msgspec.json.decode(line) for line in lines]
    events[0]["version"] = 2
    for event in events:
        if event.get("event") == "submitted" and "parent" in event:
            event["path"] = list(range(event.pop("parent") + 1))
        elif event.get("event") == "asked":
            event["path"] = list(range(event.pop("node") + 1))
    old = tmp_path / "old.jsonl"
    old.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    assert old.stat().st_size > journal.path.stat().st_size
    assert read_tree(old) == read_tree(journal.path)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"path": (0, 1)}, "leads to node 1, not to its parent 2"),
        ({"path": (0, 7, 2)}, "nodes that there are"),
        ({"path": (0, -1, 2)}, "nodes that there are"),
        ({"path": (0, 2)}, "no edge leads from node 0 to node 2"),
        ({"parent": 9}, "no node 9"),
        ({"parent": None}, "only the root"),
    ],
)
def test_a_submission_from_nowhere_is_refused(changed: dict[str, Any], sentence: str) -> None:
    journal = MemoryJournal()
    chain(TreeSearch(Tree(), journal, MemoryBlobs(), clock=lambda: 0.0), 3)
    tree = fold(journal.events[:-2])
    before = fold(journal.events[:-2])
    with pytest.raises(TreeError, match=sentence):
        apply(tree, msgspec.structs.replace(journal.events[-2], **changed))
    assert tree == before
