"""A run measured again: its best kernels, and all that led to them, evaluated on another device into a new run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.user_errors import RunError
from mctskernel.edits.async_proposer import NoProposer
from mctskernel.executors import open_executor
from mctskernel.loop import Follower, Search
from mctskernel.profiling.reward import fastest_first
from mctskernel.run import (
    Origin,
    RunFolder,
    discard_run,
    prepare_run,
    read_answer,
    read_manifest,
    write_manifest,
)
from mctskernel.run.search import SearchResult, finish
from mctskernel.tree.events import Event, Proposed, Submitted
from mctskernel.tree.journal import Journal, read_events, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.recorded_decisions import RecordedDecisions
from mctskernel.tree.search import TreeSearch

BEST_NODES = 10  # how many of the fastest kernels are measured again where nothing else is asked for


def measure(
    source: RunFolder,
    path: Path,
    *,
    device: str,
    architecture: str,
    workers: int,
    follow: Follower,
    stop_requested: Callable[[], bool],
    executor: ExecutorOptions = LOCAL,
    best_nodes: int = BEST_NODES,
) -> SearchResult:
    """Measure the best nodes of a run and their ancestors on another device, into a new run at `path`.

    It has the same edits between the same kernels, so that it can be shown, exported and searched further like any
    other. Its nodes have numbers of their own; kernels of the two runs are matched by their identity. Raises RunError
    when the run has no good node or `path` can't be used, and DeviceError when the device can't.
    """
    manifest, wanted = read_manifest(source), best_lineages(source, best_nodes)
    configuration = msgspec.structs.replace(
        manifest.configuration,
        device=device,
        architecture=architecture,
        workers=workers,
        executor=executor,
        budget=Budget(evaluations=len(wanted)),
    )
    task = source.load_task()
    folder = prepare_run(path, task)
    try:
        with (
            open_executor(folder.device_spec(configuration), workers, executor) as opened,
            Journal(folder.journal) as journal,
        ):
            write_manifest(
                folder,
                configuration,
                opened.fingerprint(),
                Origin(str(source.path.absolute()), manifest.fingerprint),
                caveats=manifest.caveats,
            )
            tree_search = TreeSearch(Tree(), journal, folder.blobs)
            root = tree_search.start(task.starting_kernel, configuration.policy, configuration.seed)
            decisions = RecordedDecisions(_decisions(read_events(source.journal), wanted), source.blobs, ())
            search = Search(
                tree_search=tree_search,
                task=task,
                proposer=NoProposer(),
                executor=opened,
                budget=configuration.budget,
                follow=follow,
                stop_requested=stop_requested,
                choose=partial(decisions.next, tree_search),
            )
            return finish(folder, search, search.run((root,)))
    finally:
        discard_run(folder)


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


def _decisions(events: Iterable[Event], wanted: Sequence[int]) -> Iterator[Event]:
    """The replies about wanted nodes and the edits that made them, with the numbers that the nodes get now.

    What is below a failure stays: it may well run where its ancestor doesn't.
    """
    numbers = {old: new for new, old in enumerate(wanted)}
    for event in events:
        if isinstance(event, Proposed) and event.node in numbers:
            yield msgspec.structs.replace(event, node=numbers[event.node])
        elif isinstance(event, Submitted) and event.node in numbers and event.parent is not None:
            yield msgspec.structs.replace(event, node=numbers[event.node], parent=numbers[event.parent])
