"""Measure a run again: its best kernels, and all that led to them, judged on another device into a new run.

The new run has the same edits between the same kernels, so that it can be shown, exported and searched further
like any other. Its nodes have numbers of their own; kernels of the two runs are matched by their identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.executor import LOCAL, Executor, ExecutorOptions
from mctskernel.core.proposer import ProposalRequest, Proposals
from mctskernel.executors import open_executor
from mctskernel.profiling.reward import fastest_first
from mctskernel.report.view import View
from mctskernel.run import (
    Budget,
    Origin,
    RunError,
    RunFolder,
    discard_run,
    prepare_run,
    read_manifest,
    write_manifest,
)
from mctskernel.runner import SearchResult, finish
from mctskernel.search import Follower, Search
from mctskernel.tree.blobs import BlobStore, digest, get_edit
from mctskernel.tree.journal import Journal
from mctskernel.tree.node import Tree
from mctskernel.tree.search import Action, Exhausted, TreeSearch, Try, Wait
from mctskernel.tree.strategies.strategy import Propose

BEST_NODES = 10
"""How many of the fastest kernels are measured where nothing else is asked for."""


@dataclass(frozen=True)
class Target:
    """Where to measure: the kind of device, the GPU that a model stands for, how many evaluate at a time, and what
    drives them.
    """

    device: str = "gpu"
    architecture: str = "H100"
    workers: int = 1
    executor: ExecutorOptions = LOCAL


def measure(
    before: View,
    path: Path,
    target: Target,
    *,
    best_nodes: int,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> SearchResult:
    """Judge the best nodes of a run and their ancestors on another device, into a new run at `path`.

    Raises RunError when the run has no good node or `path` can't be used, and DeviceError when the device can't.
    """
    wanted = best_lineages(before, best_nodes)
    configuration = msgspec.structs.replace(
        before.manifest.configuration,
        device=target.device,
        architecture=target.architecture,
        workers=target.workers,
        executor=target.executor,
        budget=Budget(evaluations=len(wanted)),
    )
    origin = Origin(str(before.folder.path.absolute()), before.manifest.fingerprint)
    folder = prepare_run(path, before.folder.load_task())
    try:
        with open_executor(folder.device_spec(configuration), target.workers, target.executor) as executor:
            write_manifest(
                folder,
                configuration,
                executor.fingerprint(),
                origin,
                unverified_reference=before.manifest.unverified_reference,
            )
            return replay(
                before, wanted, folder, executor=executor, follow=follow, stop_requested=stop_requested
            )
    finally:
        discard_run(folder)


def best_lineages(run: View, count: int) -> tuple[int, ...]:
    """The fastest nodes of a run that may be an answer, the answer itself, and all their ancestors, in order.

    Raises RunError when the run has none.
    """
    root = run.tree.nodes[0].evaluation if run.tree.nodes else None
    if root is None:
        raise RunError(f"{run.folder.path} holds no evaluation yet: there is nothing to measure.")
    evaluated = [(node.id, node.evaluation) for node in run.tree.nodes if node.evaluation is not None]
    best = fastest_first(evaluated, root)[:count]
    if not best:
        raise RunError(
            f"{run.folder.path} has no kernel that passed every guard: there is nothing to measure."
        )
    if run.answer is not None and run.answer.node is not None:
        best.append(run.answer.node)
    return tuple(sorted({ancestor for node in best for ancestor in run.tree.lineage(node)}))


def replay(
    before: View,
    wanted: tuple[int, ...],
    folder: RunFolder,
    *,
    executor: Executor,
    follow: Follower,
    stop_requested: Callable[[], bool],
) -> SearchResult:
    """Judge the wanted nodes of a run, parents before children, into a folder that has its manifest."""
    task, configuration = folder.load_task(), read_manifest(folder).configuration
    with Journal(folder.journal) as journal:
        tree_search = TreeSearch(Tree(), journal, folder.blobs)
        root = tree_search.start(task.starting_kernel, configuration.policy, configuration.seed)
        recorded = Replay(before.tree, before.folder.blobs, wanted, tree_search.tree)
        search = Search(
            tree_search=tree_search,
            task=task,
            proposer=recorded,
            executor=executor,
            budget=configuration.budget,
            follow=follow,
            stop_requested=stop_requested,
            choose=recorded.choose,
        )
        return finish(folder, search, search.run((root,)))


@dataclass(frozen=True)
class Replay:
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
        source = digest(request.kernel.source)
        records = next((node.edits for node in self.before.nodes if node.kernel.source == source), ())
        return Proposals(tuple(get_edit(self.blobs, record) for record in records))
