"""What must hold of a run whatever befell it, read from its files alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from mctskernel.answer import read_answer
from mctskernel.blobs import BlobError
from mctskernel.core.kernel import Language
from mctskernel.run import RunError, RunFolder
from mctskernel.tree.events import Evaluated, Event, Proposed, Submitted, decode
from mctskernel.tree.journal import JournalError, JournalWarning, read_events, read_tree


def whole_lines(journal: Path) -> list[bytes]:
    """The lines of a journal that have their ends, the header left out; none without a journal."""
    try:
        lines = journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [line for line in lines[1:] if line.endswith(b"\n")]


def evaluated(lines: list[bytes]) -> dict[int, float]:
    """The rewards of the nodes whose evaluations lines tell; lines that are no events tell nothing."""
    events = (_event(line) for line in lines if b'"evaluated"' in line)
    return {event.node: event.score.reward for event in events if isinstance(event, Evaluated)}


def lost(known: Mapping[int, float], journal: Path) -> int:
    """How many finished evaluations a journal doesn't have, or has with other rewards."""
    kept = evaluated(whole_lines(journal))
    return sum(kept.get(node) != reward for node, reward in known.items())


def problems(run: Path) -> list[str]:
    """What is wrong with a run at rest, in sentences; nothing if nothing is."""
    folder, journal = RunFolder(run), run / "journal.jsonl"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JournalWarning)
            tree, events = read_tree(journal), list(read_events(journal))
    except JournalError as error:
        return [str(error)]
    found = _repeated(events)
    spent = sum(event.dollars for event in events if isinstance(event, Proposed))
    if not np.isclose(spent, tree.dollars):
        found.append(f"The tree has {tree.dollars} dollars, the journal {spent}.")
    finished = {event.node: event.score.reward for event in events if isinstance(event, Evaluated)}
    if finished != {node.id: node.score.reward for node in tree.nodes if node.score is not None}:
        found.append("The tree has other rewards than the journal.")
    for name in sorted(_named(events)):
        try:
            folder.blobs.get(name)
        except BlobError as error:
            found.append(str(error))
    return found + wrong_answer(folder)


def wrong_answer(folder: RunFolder) -> list[str]:
    """What is wrong with best/, which may be absent but never be half of an answer."""
    try:
        answer = read_answer(folder)
    except RunError as error:
        return [str(error)]
    if answer is None or answer.node is None:
        return []
    tree = read_tree(folder.journal)
    record = tree.nodes[answer.node].kernel
    suffix = Language(record.language).suffix
    kept = folder.best / f"kernel{suffix}"
    if not kept.exists() or kept.read_text() != folder.blobs.get(record.source):
        return [f"{kept} isn't the kernel of node {answer.node}, which best/answer.json names."]
    return []


def _repeated(events: list[Event]) -> list[str]:
    """Nodes that were made or evaluated twice, and kernels that two nodes have."""
    made = [event for event in events if isinstance(event, Submitted)]
    several: dict[str, list[int] | list[str]] = {
        "number": [event.node for event in made],
        "kernel": [event.kernel.identity for event in made],
        "evaluation": [event.node for event in events if isinstance(event, Evaluated)],
    }
    return [
        f"Two nodes have one {what}." for what, values in several.items() if len(set(values)) < len(values)
    ]


def _named(events: list[Event]) -> set[str]:
    """The blobs that events name."""
    names: set[str] = set()
    for event in events:
        match event:
            case Submitted():
                names.add(event.kernel.source)
            case Evaluated():
                names.add(event.log)
            case Proposed():
                names.update(edit.change for edit in event.edits)
                names.update(name for each in event.exchanges for name in (each.prompt, each.reply))
    return names - {""}


def _event(line: bytes) -> Event | None:
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
