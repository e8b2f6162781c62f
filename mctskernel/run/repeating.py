"""A run made again from its recorded edits, on the same device or another one: all of it, or its best kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.user_errors import RunError
from mctskernel.loop import Follower
from mctskernel.profiling.reward import fastest_first
from mctskernel.run import RunFolder, open_run, read_answer, read_manifest
from mctskernel.run.search import SearchResult, finish, new_run, open_search
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Node

BEST_NODES = 10  # how many of the fastest kernels are measured again where nothing else is asked for


def replay(
    path: Path,
    recorded: Path,
    follow: Follower = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    **elsewhere: str,
) -> tuple[SearchResult, str]:
    """Make a run that repeats another one's edits in their order, and say how the two differ.

    `elsewhere` is the `device` and its `architecture`, where they are others than then. Raises what `begin` raises.
    """
    source = open_run(recorded)
    evaluated = [node for node in read_tree(source.journal).nodes if node.evaluation is not None]
    nodes = tuple(node.id for node in evaluated)
    search_result = _repeat(path, source, nodes, follow, stop_requested, **elsewhere)
    return search_result, _difference(evaluated, search_result.tree.nodes)


def measure(
    source: RunFolder,
    path: Path,
    *,
    best_nodes: int = BEST_NODES,
    follow: Follower,
    stop_requested: Callable[[], bool],
    **elsewhere: Any,
) -> SearchResult:
    """Measure the best nodes of a run and their ancestors on another device, into a new run at `path`.

    `elsewhere` is the `device`, with its `architecture`, `workers` and `executor`. The new run has the same edits
    between the same kernels, so that it can be shown, exported and searched further like any other. Its nodes have
    numbers of their own; kernels of the two runs are matched by their identity. Raises RunError when the run has no
    good node or `path` can't be used, and DeviceError when the device can't.
    """
    wanted = best_lineages(source, best_nodes)
    return _repeat(path, source, wanted, follow, stop_requested, **elsewhere)


def best_lineages(source: RunFolder, count: int) -> tuple[int, ...]:
    """The fastest nodes, the answer and all their ancestors, in order. Raises RunError when there are none."""
    tree, answer = read_tree(source.journal), read_answer(source)
    root = tree.nodes[0].evaluation if tree.nodes else None
    if root is None:
        raise RunError(f"{source.path} holds no evaluation yet: there is nothing to measure.")
    evaluated = [(node.id, node.evaluation) for node in tree.nodes if node.evaluation is not None]
    best = fastest_first(evaluated, root)[:count]
    if not best:
        raise RunError(f"{source.path} has no kernel that passed every guard: there is nothing to measure.")
    if answer is not None and answer.node is not None:
        best.append(answer.node)
    return tuple(sorted({ancestor for node in best for ancestor in tree.lineage(node)}))


def _repeat(
    path: Path,
    source: RunFolder,
    nodes: tuple[int, ...],
    follow: Follower,
    stop_requested: Callable[[], bool],
    **elsewhere: Any,
) -> SearchResult:
    """Make a run of these nodes of another one."""
    configuration = msgspec.structs.replace(
        read_manifest(source).configuration,
        budget=Budget(evaluations=len(nodes)),
        replayed=str(source.path.resolve()),
        replayed_nodes=nodes,
        **elsewhere,
    )
    with (
        new_run(path, source.task, configuration) as (folder, executor),
        open_search(folder, configuration, executor, follow, stop_requested) as (search, unfinished),
    ):
        return finish(folder, search, search.run(unfinished))


def _difference(recorded: Sequence[Node], repeated: Sequence[Node]) -> str:
    """In a sentence, how the nodes of a repeated search differ from those of the recorded one; empty if they don't."""
    for node, (then, now) in enumerate(zip(recorded, repeated, strict=False)):
        if then.kernel.identity != now.kernel.identity:
            return f"Node {node} is another one than it was: up to there the two searches agree."
    if len(recorded) == len(repeated):
        return ""
    return f"Of {len(recorded)} nodes the repeated search has {len(repeated)}, and these are the same."
