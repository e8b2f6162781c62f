"""Starting points beside the starting kernel: tried first, once, and named in what the winner came from."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.budget import Budget
from mctskernel.core.kernel import Language
from mctskernel.loop import Search, choose
from mctskernel.tasks.starts import origin, starting_points
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_title
from tests import landscape


def write_starts(folder: Path) -> None:
    near = (landscape.BEST[0] + 1, landscape.BEST[1])
    (folder / "start_near.cu").write_text(landscape.kernel(*near).source)
    (folder / "start_far.cu").write_text(landscape.kernel(0, 0).source)
    (folder / "start_other.py").write_text("another language")


def begun(folder: Path, budget: int) -> Search:
    found = landscape.search(Budget(evaluations=budget), starts=starting_points(folder, Language.CUDA))
    found.run((landscape.start(found),))
    return found


def titles(tree: Tree) -> list[str]:
    return [edit_title(tree, node) for node in tree.nodes[1:]]


def test_starting_points_are_tried_before_anything_else_and_once(tmp_path: Path) -> None:
    write_starts(tmp_path)
    tree = begun(tmp_path, 30).tree_search.tree
    assert titles(tree)[:2] == ["start from far", "start from near"]
    assert len([title for title in titles(tree) if title.startswith("start from")]) == 2
    assert tree.evaluations == 30


def test_the_winner_says_where_it_came_from(tmp_path: Path) -> None:
    write_starts(tmp_path)
    found = begun(tmp_path, 12)
    best = choose(found.tree_search, found.executor).node
    assert best is not None
    assert origin(found.tree_search.tree, best) == "near"
    assert origin(found.tree_search.tree, 0) == ""


def test_a_resumed_search_goes_on_with_the_starting_points_that_are_left(tmp_path: Path) -> None:
    write_starts(tmp_path)
    first = begun(tmp_path, 2)
    assert titles(first.tree_search.tree) == ["start from far"]
    again = landscape.search(Budget(evaluations=3), tree_search=first.tree_search, starts=first.starts)
    again.run(first.tree_search.resume())
    assert titles(first.tree_search.tree) == ["start from far", "start from near"]
