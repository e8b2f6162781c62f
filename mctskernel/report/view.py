"""A run as every report reads it: its folder, its tree and, once the search has stopped, its answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mctskernel.answer import Answer, best_node, valid_speedup
from mctskernel.core.evaluation import Evaluation, Outcome, Source, Timing
from mctskernel.core.kernel import Language
from mctskernel.core.proposer import Exchange
from mctskernel.core.quantities import speedup_text, time_text
from mctskernel.core.task import short_caveats
from mctskernel.core.user_errors import RunError
from mctskernel.edits.patch import unified_diff
from mctskernel.profiling.changes import Comparison, compare
from mctskernel.report.baselines import Baselines, read_baselines
from mctskernel.report.notes import EditKey, counted, exchange_by_edit
from mctskernel.run import Manifest, RunFolder, open_run, read_answer, read_manifest
from mctskernel.run.search import NOTHING_HELD_OUT
from mctskernel.tasks.starts import best_start, start_name, start_speedup
from mctskernel.tree.journal import read_events, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.trajectory import PathStep, trajectory

IN_FLIGHT = Evaluation(Outcome.OK, Source.MODELLED)
"""In place of the evaluation of a node that has none: nothing was found of it."""


@dataclass(frozen=True)
class View:
    """A run. Reading it raises RunError."""

    folder: RunFolder
    tree: Tree
    answer: Answer | None
    is_cut_off: bool = False

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder)

    @property
    def device(self) -> str:
        return f"{self.manifest.configuration.device}, {self.manifest.fingerprint.get('gpu', 'unknown GPU')}"

    @property
    def numbers(self) -> Source:
        """Whether its times are measured, modelled or recorded."""
        found = self.tree.nodes[0].evaluation if self.tree.nodes else None
        return found.source if found else IN_FLIGHT.source

    @property
    def validation(self) -> str:
        """The result of the final validation, in sentences."""
        return " ".join(
            [self._validation, *(f"{each[0].upper()}{each[1:]}." for each in self.manifest.caveats)]
        )

    @property
    def _validation(self) -> str:
        if self.is_cut_off:
            return (
                "The end of the journal is lost: it has fewer evaluations than the answer in best/. "
                f"To continue: mctskernel resume {self.folder.path}"
            )
        if self.answer is None:
            return "The best kernel so far has not passed the final validation, which ends a search."
        if not self.answer.validated:
            return f"Not validated: it was interrupted. To validate it: mctskernel resume {self.folder.path}"
        if self.manifest.configuration.language is Language.CONFIGURATION:
            return "No final validation: recorded configurations can't be run again."
        passed = sum(check.passed for check in self.answer.checks)
        where = "fresh seeds" if NOTHING_HELD_OUT in self.answer.notes else "held-out shapes and fresh seeds"
        sentence = f"Final validation: {counted(passed, 'check')} passed on {where}."
        caveats = short_caveats(self.manifest.caveats)
        times = [
            f"{speedup_text(timing.baseline_seconds / timing.seconds, self.numbers)} over {self.start_title} at "
            f"{timing.shape}{caveats}"
            for timing in self.answer.timings
            if timing.baseline_seconds is not None
        ]
        return f"{sentence} Timed there: {', '.join(times)}." if times else sentence

    def refuse_recorded(self) -> None:
        """Raise RunError where nodes are recorded configurations, which have no kernel to run."""
        if self.manifest.configuration.language is Language.CONFIGURATION:
            raise RunError(f"{self.folder.path} searched recorded configurations: it has no kernels to run.")

    @property
    def gpus(self) -> dict[str, int]:
        """The number of kernels that each GPU timed, by UUID, as far as evaluations name one."""
        if self.manifest.configuration.device in {"model", "recorded"}:
            return {}
        found = (node.evaluation.gpu for node in self.tree.nodes if node.evaluation)
        return dict(Counter(gpu for gpu in found if gpu))

    @property
    def outcomes(self) -> dict[str, int]:
        found = (node.outcome for node in self.tree.nodes)
        return dict(Counter(str(outcome) for outcome in found if outcome is not None).most_common())

    @property
    def fastest(self) -> Node | None:
        """The best node; None while no kernel is valid."""
        if self.answer is not None and self.answer.node is not None:
            return self.best
        return self.best if self.tree.nodes and valid_speedup(self.best) > 0 else None

    @property
    def best(self) -> Node:
        """The answer's node, or the fastest so far; the root where no kernel is valid."""
        if self.answer is not None and self.answer.node is not None:
            return self.tree.nodes[self.answer.node]
        if not self.tree.nodes:
            raise RunError(f"{self.folder.path} holds no evaluation yet.")
        return self.tree.nodes[best_node(self.tree, self.refused)]

    @cached_property
    def start(self) -> int:
        """The node of the fastest start that the final validation didn't refuse."""
        return best_start(self.tree, self.refused)

    @property
    def start_title(self) -> str:
        name = start_name(self.tree, self.start) if self.tree.nodes else ""
        return f"the start '{name}'" if name else "the starting kernel"

    @cached_property
    def start_speedup(self) -> float:
        """The fastest start's speed-up over the root, by which others are divided to be over that start."""
        return start_speedup(self.tree, self.refused)

    @property
    def steps(self) -> tuple[PathStep, ...]:
        return self.path(self.best.id)

    def path(self, number: int) -> tuple[PathStep, ...]:
        """The path from the root to a node, with speed-ups over the fastest start."""
        found = trajectory(self.tree, number)
        return tuple(replace(step, speedup=step.speedup / self.start_speedup) for step in found)

    @cached_property
    def baselines(self) -> Baselines | None:
        """PyTorch's times beside the answer's; None where they are unknown, or another kernel's."""
        found = read_baselines(self.folder.path)
        return found if found and self.answer and self.answer.node == found.node else None

    @cached_property
    def refused(self) -> dict[int, str]:
        """Why the final validation refused nodes, and that others descend from those, by node."""
        if self.answer is None:
            return {}
        refused, end = dict(self.answer.refused), self.answer.node
        if end is None or refused.keys().isdisjoint(self.tree.lineage(end)):
            for node in self.tree.nodes:  # parents come before their children
                if node.parent in refused:
                    refused.setdefault(node.id, "it descends from a refused one")
        return refused

    @cached_property
    def exchanges(self) -> dict[EditKey, Exchange]:
        """The calls of models that edits came from."""
        return exchange_by_edit(read_events(self.folder.journal))

    def node(self, number: int) -> Node:
        """A node by its number. Raises RunError for one that doesn't exist."""
        if not 0 <= number < len(self.tree.nodes):
            raise RunError(
                f"{self.folder.path} has the nodes 0 to {len(self.tree.nodes) - 1}, no node {number}."
            )
        return self.tree.nodes[number]

    def source(self, number: int) -> str:
        return self.folder.blobs.get(self.node(number).kernel.source)

    def diff(self, number: int) -> str:
        """The unified diff of a node's kernel against its parent's; empty for the root, and for other languages."""
        node = self.node(number)
        if node.parent is None or self.node(node.parent).kernel.language is not node.kernel.language:
            return ""
        return unified_diff(self.source(node.parent), self.source(number))

    def comparison(self, number: int) -> Comparison | None:
        """What a node's edit did to its parent's time; None for the root, and unless both were timed."""
        parent = self.node(number).parent
        if parent is None:
            return None
        before, after = self.node(parent).evaluation, self.node(number).evaluation
        return compare(before, after) if before and after else None

    def evaluation(self, number: int) -> Evaluation:
        """A node's evaluation. Raises RunError while it is in flight."""
        evaluation = self.node(number).evaluation
        if evaluation is None:
            raise RunError(f"Node {number} of {self.folder.path} has not been evaluated yet.")
        return evaluation


def load_view(path: Path) -> View:
    """The view of a run folder, without an answer to another tree than its own. Raises RunError."""
    folder = open_run(path)
    tree, answer = read_tree(folder.journal), read_answer(folder)
    evaluations = answer.evaluations if answer is not None else tree.evaluations
    is_current = evaluations == tree.evaluations
    return View(folder, tree, answer if is_current else None, evaluations > tree.evaluations)


def timing_text(timing: Timing) -> str:
    """A time, its interval if there is one, and the shape."""
    spread = f" [{time_text(timing.low)} to {time_text(timing.high)}]" if timing.high > timing.low else ""
    shape = f" at {timing.shape}" if timing.shape else ""
    return f"{time_text(timing.seconds)}{spread}{shape}"
