"""What a request says of a node beside the tree's own facts: what edits did, and how the best kernels stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mctskernel.answer import valid_speedup
from mctskernel.core.proposer import Attempt, ProposalRequest
from mctskernel.core.quantities import time_text
from mctskernel.core.task import Task, shape_label
from mctskernel.profiling.architecture import NOTHING, architecture_of, least_seconds
from mctskernel.profiling.changes import compare
from mctskernel.tasks.starts import PROPOSER, origin, start_name, start_nodes, start_speedup
from mctskernel.tree.node import Tree
from mctskernel.tree.search import TreeSearch
from mctskernel.tree.trajectory import edit_title, run_seconds

MOST_PARAMETERS = 12  # of a kernel's macros: templates have fewer


def request_of(
    search: TreeSearch,
    node: int,
    task: Task,
    fingerprint: Mapping[str, str],
    flops: Mapping[str, float] = NOTHING,
) -> ProposalRequest:
    """The request for edits of a node.

    The fingerprint is that of the device that evaluates them; `flops` are those of the task's products, by shape.
    Speed-ups are over the fastest start, which is no edit that gained elsewhere.
    """
    request = search.proposal_request(node, task)
    start = start_speedup(search.tree)
    gained = (each for each in request.elsewhere if not each.proposer.startswith(PROPOSER))
    return replace(
        request,
        speedup=request.speedup / start,
        best_speedup=request.best_speedup / start,
        lineage=_with_effects(search.tree, request.lineage),
        siblings=_with_effects(search.tree, request.siblings),
        elsewhere=_with_effects(search.tree, gained),
        beside=_with_effects(search.tree, request.beside),
        standing=tuple(_standing(search, task, fingerprint, flops)),
    )


def _with_effects(tree: Tree, attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Attempts with what their edits did to the time, its parts, and the counts behind these."""

    def effect(node: int | None) -> str:
        if node is None or (parent := tree.nodes[node].parent) is None:
            return ""
        before, after = tree.nodes[parent].evaluation, tree.nodes[node].evaluation
        found = compare(before, after) if before and after else None
        return " ".join(found.sentences) if found else ""

    return tuple(replace(each, effect=effect(each.node)) for each in attempts)


def _standing(
    search: TreeSearch, task: Task, fingerprint: Mapping[str, str], flops: Mapping[str, float]
) -> Iterator[str]:
    """The starts, the fastest kernel that came from each, and how far the fastest of all is from the least time."""
    nodes = search.tree.nodes
    fastest: dict[str, int] = {}
    for node in nodes:
        name = origin(search.tree, node.id)
        if valid_speedup(node) > valid_speedup(nodes[fastest.get(name, 0)]) or name not in fastest:
            fastest[name] = node.id
    for start in start_nodes(search.tree):
        name = start_name(search.tree, start)
        yield f"{_kernel(search, start)}."
        if (best := fastest.get(name, start)) != start:
            yield f"The fastest that came from it: {_kernel(search, best)}."
    best = max(fastest.values(), key=lambda each: valid_speedup(nodes[each]))
    evaluation = nodes[best].evaluation
    gpu = architecture_of(fingerprint.get("architecture", ""), fingerprint.get("gpu", ""))
    if gpu is None or evaluation is None or len(task.search_shapes) != 1:
        return
    (shape,) = task.search_shapes
    least, seconds = (
        least_seconds(gpu, task, shape, flops.get(shape_label(shape), 0.0)),
        run_seconds(evaluation),
    )
    if least and seconds:
        yield f"Node {best} takes {seconds / least:.3g} times the least time, {time_text(least, 3)}."


def _kernel(search: TreeSearch, number: int) -> str:
    """A kernel with its time, or why it has none, and its parameters."""
    node = search.tree.nodes[number]
    seconds = run_seconds(node.evaluation) if node.evaluation else None
    failure = f"{node.outcome}: {node.evaluation.message[:200]}" if node.evaluation else "not evaluated"
    result = time_text(seconds, 3) if seconds else failure.rstrip(".")
    macros = list(search.kernel(number).macros.items())[:MOST_PARAMETERS]
    parameters = f" ({', '.join(f'{name} {value}' for name, value in macros)})" if macros else ""
    title = edit_title(search.tree, node)
    return f'Node {number}, "{title}" in {node.kernel.language}: {result}{parameters}'
