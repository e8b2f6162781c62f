"""A run measured again: its best kernels, and all that led to them, evaluated on another device into a new run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.disk import BlobStore
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.executors import open_executor
from mctskernel.loop import Follower, Search
from mctskernel.profiling.reward import fastest_first
from mctskernel.run import (
    Origin,
    RunError,
    RunFolder,
    discard_run,
    prepare_run,
    read_answer,
    read_manifest,
    write_manifest,
)
from mctskernel.run.search import SearchResult, finish
from mctskernel.tree.blobs import get_edit
from mctskernel.tree.journal import Journal, read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.search import Action, Exhausted, TreeSearch, Try, Wait
from mctskernel.tree.strategies.strategy import Propose

BEST_NODES = 10
"""How many of the fastest kernels are measured again where nothing else is asked for."""


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
    manifest, before = read_manifest(source), read_tree(source.journal)
    wanted = best_lineages(source, best_nodes)
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
            recorded = _RecordedEdits(before, source.blobs, wanted, tree_search.tree)
            search = Search(
                tree_search=tree_search,
                task=task,
                proposer=recorded,
                executor=opened,
                budget=configuration.budget,
                follow=follow,
                stop_requested=stop_requested,
                choose=recorded.choose,
            )
            return finish(folder, search, search.run((root,)))
    finally:
        discard_run(folder)


def best_lineages(source: RunFolder, count: int) -> tuple[int, ...]:
    """The fastest nodes of a run that may be an answer, the answer itself, and all their ancestors, in order.

    Raises RunError when the run has none.
    """
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


@dataclass(frozen=True)
class _RecordedEdits:
    """Makes the wanted nodes of an earlier run again: says what to do next, and proposes the edits of then.

    A node whose edit doesn't apply any more is left out with all below it. What is below a failure is not: it may
    well run where its ancestor doesn't.
    """

    before: Tree
    blobs: BlobStore
    wanted: tuple[int, ...]
    after: Tree
    name: str = "recorded"

    def choose(self) -> Action:
        """Submit the first wanted node that can be; to be asked again whenever something has changed."""
        made = {node.kernel.source: node for node in self.after.nodes}
        for number in self.wanted[1:]:
            old = self.before.nodes[number]
            if old.parent is None or old.edit is None or old.kernel.source in made:
                continue
            parent = made.get(self.before.nodes[old.parent].kernel.source)
            if parent is None or parent.evaluation is None:
                continue
            if not parent.edits:
                return Propose(parent.id)
            if old.edit in parent.untried:
                return Try(parent.id, old.edit, get_edit(self.blobs, parent.edits[old.edit]))
        return Wait() if self.after.pending else Exhausted()

    def propose(self, request: ProposalRequest) -> Proposals:
        """Every edit that the kernel was offered, in the same order, so that their numbers are the same."""
        records = next(
            (node.edits for node in self.before.nodes if node.kernel.identity == request.kernel.identity), ()
        )
        return Proposals(tuple(get_edit(self.blobs, record) for record in records))
