"""Memory across runs: a folder with a file for each run, of what kinds of edits did in it.

A file is named by its run's identity: remembering the run again replaces it, deleting it forgets the run.
`docs/memory.md` describes what is kept and what a search does with it.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.edit import Experience, kind_of
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import BadRunError
from mctskernel.profiling.reward import Gain, gain_of, is_eligible
from mctskernel.tree.events import EditRecord
from mctskernel.tree.node import Tree

SCHEMA = "mctskernel.memory"
SCHEMA_VERSION = 1

RECALLED = 2000
"""Kinds of edits that are recalled at the most, the most tried: models call the same edit by many titles."""

SNAPSHOT_SUFFIX = ".json"


class MemoryUnusableError(BadRunError, RuntimeError):
    """A memory that can't be read or written; the message is a sentence with the file."""


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experience, and whether its gains were measured or modelled, which are never added up."""

    source: Source
    experience: Experience


class Snapshot(msgspec.Struct, frozen=True):
    """Experiences as a file holds them: those of one run, or of several as a run's memory.json has them."""

    experiences: tuple[Remembered, ...]
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION


def default_path() -> Path:
    """`mctskernel/memory` in the user's data folder, as the XDG Base Directory Specification has it."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "mctskernel" / "memory"


def remember(memory: Path, identity: str, source: Source, learnt: tuple[Experience, ...]) -> int:
    """Keep what a run taught in place of what was kept of it before. Returns how many of its edits were counted.

    Zero, and nothing is kept, where a run teaches nothing (`lessons`). Raises MemoryUnusableError.
    """
    if learnt:
        try:
            memory.mkdir(parents=True, exist_ok=True)
            text = encode_snapshot(Remembered(source, each) for each in learnt)
            write_whole(memory / f"{identity}{SNAPSHOT_SUFFIX}", text.encode())
        except OSError as error:
            raise MemoryUnusableError(
                f"The memory {memory} can't be used: {error.strerror or error}."
            ) from error
    return sum(each.tried for each in learnt)


def recall(
    memory: Path,
    language: str | None = None,
    architecture: str | None = None,
    source: Source | None = None,
) -> tuple[Remembered, ...]:
    """All experiences of a folder or of one file, added up over runs, the most tried first; None stands for any.

    Nothing if there is no folder yet. Raises MemoryUnusableError.
    """
    if memory.suffix == SNAPSHOT_SUFFIX:
        files = [memory]
    elif memory.exists() and not memory.is_dir():
        raise MemoryUnusableError(f"The memory {memory} can't be used: it is no folder.")
    else:
        files = sorted(memory.glob(f"*{SNAPSHOT_SUFFIX}"))
    found: defaultdict[tuple[str, ...], list[Experience]] = defaultdict(list)
    for kept in (each for file in files for each in read_snapshot(file).experiences):
        each = kept.experience
        if (source or kept.source, language or each.language, architecture or each.architecture) == (
            kept.source,
            each.language,
            each.architecture,
        ):
            key = (kept.source, each.language, each.architecture, each.category, each.title, each.bottleneck)
            found[key].append(each)
    summed = [(key, _sum(each)) for key, each in found.items()]
    summed.sort(key=lambda pair: (-pair[1].tried, pair[0]))
    return tuple(Remembered(Source(key[0]), each) for key, each in summed)


def _sum(experiences: list[Experience]) -> Experience:
    tried, failed, improved = (
        sum(getattr(each, name) for each in experiences) for name in ("tried", "failed", "improved")
    )
    log_gains = sum(each.log_gain * (each.tried - each.failed) for each in experiences)
    first = experiences[0]
    kind = (first.category, first.title, first.bottleneck, first.language, first.architecture)
    return Experience(*kind, tried, failed, improved, log_gains / (tried - failed) if tried > failed else 0.0)


def lessons(tree: Tree, names: frozenset[str], architecture: str) -> tuple[Experience, ...]:
    """What a run taught: one experience for each kind of edit and bottleneck, in order of discovery.

    `names` are the task's own. Nothing from search-space caches, whose parameters mean nothing elsewhere. An edit of a
    kernel without a valid time isn't counted, nor is one whose kernel can't be verified; one whose own kernel has no
    valid time otherwise, quarantined ones included, has failed.
    """
    gains: dict[tuple[str, str, str, str], list[Gain | None]] = {}
    for edit, language, bottleneck, gain in _tried(tree):
        kind = (str(edit.category), kind_of(edit.title, names), bottleneck, language.value)
        gains.setdefault(kind, []).append(gain)
    return tuple(
        Experience(
            *kind,
            architecture,
            tried=len(found),
            failed=found.count(None),
            improved=sum(each is not None and each.is_certain for each in found),
            log_gain=statistics.fmean([each.log for each in found if each is not None] or [0.0]),
        )
        for kind, found in gains.items()
    )


def _tried(tree: Tree) -> Iterator[tuple[EditRecord, Language, str, Gain | None]]:
    """Each edit that was evaluated, the language of the kernel before it, what bound that, and the gain.

    The gain is None for a failure. Edits that put a kernel of another language in its place are left out.
    """
    for parent in tree.nodes:
        before, language = parent.evaluation if parent.children else None, parent.kernel.language
        if before is None or not is_eligible(before) or language is Language.CONFIGURATION:
            continue
        for child in map(tree.nodes.__getitem__, parent.children):
            after = child.evaluation
            if after is None or child.edit is None or child.kernel.language is not language:
                continue
            if after.outcome is Outcome.UNVERIFIABLE:
                continue
            gain = gain_of(after, before)
            if gain is None and is_eligible(after):
                continue  # timed at other shapes: nothing can be said
            yield parent.edits[child.edit], language, _bottleneck(before), gain


def _bottleneck(evaluation: Evaluation) -> str:
    causes = evaluation.diagnosis.causes if evaluation.diagnosis else ()
    return str(causes[0].bottleneck) if causes else ""


def take_snapshot(
    path: Path, language: Language | None, architecture: str, source: Source
) -> tuple[Experience, ...]:
    """What is known of a language, or of all, on an architecture: the most tried edits. Raises MemoryUnusableError."""
    found = recall(path, language, architecture, source)
    return tuple(each.experience for each in found[:RECALLED])


def encode_snapshot(experiences: Iterable[Remembered]) -> str:
    """The text of a snapshot, JSON that `read_snapshot` reads."""
    return msgspec.json.format(msgspec.json.encode(Snapshot(tuple(experiences)))).decode() + "\n"


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot. Raises MemoryUnusableError."""
    try:
        snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except UNDECODABLE as error:
        raise MemoryUnusableError(f"{path} can't be used: {excerpt(error)}.") from error
    except OSError as error:
        raise MemoryUnusableError(f"{path} can't be used: {error.strerror or error}.") from error
    if snapshot.schema != SCHEMA or snapshot.schema_version != SCHEMA_VERSION:
        raise MemoryUnusableError(
            f"{path} is {snapshot.schema} version {snapshot.schema_version}; "
            f"this program reads {SCHEMA} version {SCHEMA_VERSION}."
        )
    return snapshot
