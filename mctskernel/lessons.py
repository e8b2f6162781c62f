"""Lessons: what the edits of one run did, by kind of edit and by what bound the kernel that they were made to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mctskernel.core.evaluation import Evaluation
from mctskernel.core.experience import Experience, kind_of, names_of
from mctskernel.core.kernel import Language
from mctskernel.profiling.gains import gain_of
from mctskernel.profiling.reward import is_eligible
from mctskernel.run import Manifest, RunFolder
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Tree


def lessons(folder: RunFolder, manifest: Manifest) -> tuple[Experience, ...]:
    """What is to be learnt of a run, one experience for each kind of edit and bottleneck, in order of discovery.

    Nothing of recorded configurations, whose parameters mean nothing elsewhere, nor of kernels of another run that were
    measured again. An edit of a kernel that has no believed time has nothing to be compared with and isn't counted; one
    whose own kernel has none, quarantined ones included, has failed. Raises JournalError and TaskError.
    """
    configuration = manifest.configuration
    if configuration.language is Language.CONFIGURATION or manifest.measured_from is not None:
        return ()
    names = names_of(folder.load_task())
    found: dict[tuple[str, str, str], _Count] = {}
    for tried in _tried(read_tree(folder.journal)):
        kind = (tried.category, kind_of(tried.title, names), tried.bottleneck)
        found.setdefault(kind, _Count()).add(tried)
    architecture = manifest.fingerprint.get("architecture", "")
    return tuple(
        Experience(
            *kind,
            configuration.language.value,
            architecture,
            count.tried,
            count.failed,
            count.improved,
            count.log_gains / valid if (valid := count.tried - count.failed) else 0.0,
        )
        for kind, count in found.items()
    )


@dataclass(frozen=True)
class _Tried:
    """An edit that was evaluated; without `log_gain` it failed."""

    category: str
    title: str
    bottleneck: str
    log_gain: float | None
    improved: bool


@dataclass
class _Count:
    tried: int = 0
    failed: int = 0
    improved: int = 0
    log_gains: float = 0.0

    def add(self, tried: _Tried) -> None:
        self.tried += 1
        self.failed += tried.log_gain is None
        self.improved += tried.improved
        self.log_gains += tried.log_gain or 0.0


def _tried(tree: Tree) -> Iterator[_Tried]:
    for parent in tree.nodes:
        children = tree.children_of(parent.id)
        before = parent.evaluation if children else None
        if before is None or not is_eligible(before):
            continue
        for child in map(tree.nodes.__getitem__, children):
            after = child.evaluation
            if after is None or child.edit is None:
                continue
            gain = gain_of(after, before)
            if gain is None and is_eligible(after):
                continue  # timed at other shapes: nothing can be said
            edit = parent.edits[child.edit]
            yield _Tried(
                str(edit.category),
                edit.title,
                _bottleneck(before),
                None if gain is None else gain.log,
                gain is not None and gain.is_certain,
            )


def _bottleneck(evaluation: Evaluation) -> str:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    return str(causes[0].bottleneck) if causes else ""
