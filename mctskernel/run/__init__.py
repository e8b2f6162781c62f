"""A run's folder on disk; `mctskernel.run.search` begins, resumes and replays runs.

run.json        schema version, task, configuration, fingerprint
journal.jsonl   append-only events; replaying them makes the tree
blobs/          sources, compiler logs and other texts by SHA-256
task/           the task folder as it was when the run began
best/           the fastest kernel that passed every guard, and its trajectory
profiles/       full Nsight Compute reports of nodes that were asked for
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel import __version__
from mctskernel.answer import Answer
from mctskernel.config import SearchConfig
from mctskernel.core.device import DeviceSpec
from mctskernel.core.disk import BlobStore, link_outside, remedy, write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt, indented_json
from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.core.proposer import Exchange
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.tree.blobs import get_exchange
from mctskernel.tree.events import Event, Proposed, Resumed
from mctskernel.tree.journal import read_events
from mctskernel.tree.search import TreeSearch

T = TypeVar("T")

SCHEMA_VERSION = 2
TASK_FILE_LIMIT = 16 << 20
"""Bytes above which a file of the task folder stays behind: no dataset is copied into every run."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of run.json; `caveats` are those of its task when the run began, in sentences.

    `moved_to` are fingerprints of other GPUs of the same model with which the search went on.
    """

    schema_version: int
    created: str
    version: str
    configuration: SearchConfig
    fingerprint: dict[str, str]
    caveats: tuple[str, ...] = ()
    moved_to: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run are."""

    path: Path

    @property
    def manifest(self) -> Path:
        """run.json."""
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """journal.jsonl."""
        return self.path / "journal.jsonl"

    @property
    def blobs(self) -> BlobStore:
        """The texts by digest."""
        return BlobStore(self.path / "blobs")

    @property
    def task(self) -> Path:
        """The copy of the task folder."""
        return self.path / "task"

    @property
    def best(self) -> Path:
        """The folder of the answer."""
        return self.path / "best"

    @property
    def profiles(self) -> Path:
        """The folder of Nsight Compute's reports."""
        return self.path / "profiles"

    def device_spec(self, configuration: SearchConfig) -> DeviceSpec:
        """Describe this run's device for a worker."""
        return DeviceSpec(
            configuration.device,
            self.task,
            architecture=configuration.architecture,
            seed=configuration.seed,
            language=configuration.language,
        )

    def load_task(self) -> Task:
        """Load the task as it was when the run began, with the kernel that it started from. Raises TaskError."""
        return load_task(self.task, read_manifest(self).configuration.language)


def new_path(name: str) -> Path:
    """Return a new path for a run or what else has this name: `runs/NAME-DATE-TIME`."""
    return Path("runs") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def prepare_run(path: Path, task: Task) -> RunFolder:
    """Make the folder of a new run with a copy of its task. Raises RunError if it holds anything already."""
    with _sentences(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RunError(
                f"{path} already holds something: choose another --out, or continue a run with "
                f"`mctskernel resume {path}`."
            )
        folder = RunFolder(path)
        _copy_task(task, folder.task)
    return folder


def write_manifest(
    folder: RunFolder,
    configuration: SearchConfig,
    fingerprint: dict[str, str],
    *,
    caveats: tuple[str, ...] = (),
) -> None:
    """Write run.json; from then on the folder is a run. Raises RunError."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(SCHEMA_VERSION, created, __version__, configuration, fingerprint, caveats)
    rewrite_manifest(folder, manifest)


def rewrite_manifest(folder: RunFolder, manifest: Manifest) -> None:
    """Write run.json anew. Raises RunError."""
    write_text(folder.manifest, indented_json(manifest, 2).decode())


def discard_run(folder: RunFolder) -> None:
    """Remove a prepared folder that never became a run, so that its name can be used again."""
    if not folder.manifest.exists():
        shutil.rmtree(folder.path, ignore_errors=True)


def open_run(path: Path) -> RunFolder:
    """Open a run folder for reading. Raises RunError when it isn't one."""
    folder = RunFolder(path)
    if not folder.manifest.is_file():
        raise RunError(f"{path} is not a run: it has no run.json.")
    read_manifest(folder)
    return folder


def read_manifest(folder: RunFolder) -> Manifest:
    """run.json; refuses one from another version, and a folder with links to elsewhere, with a sentence."""
    with _sentences(folder.manifest):
        if (found := link_outside(folder.path)) is not None:
            raise RunError(f"{found} is a link that leads out of the run's folder, which a run never has.")
        data = folder.manifest.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise RunError(
                f"{folder.manifest} has schema version {version}; mctskernel {__version__} reads version "
                f"{SCHEMA_VERSION}. Use the mctskernel that made the run, or search again."
            )
        document = msgspec.json.decode(data)
        if isinstance(document.get("configuration"), dict):
            for former in ("memory", "spent"):  # of runs until November 2026
                document["configuration"].pop(former, None)
        return msgspec.convert(document, Manifest)
    except UNDECODABLE as error:
        raise RunError(f"{folder.manifest} is not a run's: {excerpt(error)}.") from error


def run_identity(folder: RunFolder, manifest: Manifest) -> str:
    """16 hexadecimal digits from when and of what a run was made, wherever its folder is. Raises RunError."""
    first = next(read_events(folder.journal), None)
    began = repr(first.at) if first is not None else ""
    text = f"{manifest.created} {manifest.configuration.task} {manifest.configuration.seed} {began}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path, text: str) -> None:
    """Write a file of the run so that it is never seen half-written. Raises RunError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode("utf-8", "replace"))
    except OSError as error:
        run = next((each for each in path.parents if RunFolder(each).manifest.exists()), None)
        advice = f" {remedy(error, run)}" if run is not None else ""
        raise RunError(f"{path} can't be written: {error.strerror}.{advice}") from error


def write_answer(folder: RunFolder, search: TreeSearch, answer: Answer) -> None:
    """Write the kernel of an answer, then best/answer.json, which is there only when both are. Raises RunError."""
    path = folder.best / "answer.json"
    try:
        for old in (path, *(path.with_name(f"kernel{each.suffix}") for each in SOURCE_LANGUAGES)):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} can't be replaced: {error}.") from error
    if answer.node is not None:
        kernel = search.kernel(answer.node)
        write_text(folder.best / f"kernel{kernel.language.suffix}", kernel.source)
    write_text(path, msgspec.json.encode(answer).decode() + "\n")


def read_answer(folder: RunFolder) -> Answer | None:
    """Read the answer of a run; None while its search hasn't stopped yet. Raises RunError."""
    return read_json(folder.best / "answer.json", Answer)


def read_json(path: Path, kind: type[T]) -> T | None:
    """Read a file of results; None where there is none. Raises RunError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *UNDECODABLE) as error:
        raise RunError(f"{path} can't be read: {excerpt(error)}.") from error


def spent_seconds(events: Iterable[Event]) -> float:
    """Return the seconds that the processes of a run have spent on it, pauses between them left out."""
    total, began, last = 0.0, 0.0, 0.0
    for event in events:
        if began == 0.0 or isinstance(event, Resumed):
            total, began = total + last - began, event.at
        last = event.at
    return total + last - began


def exchanges_of(folder: RunFolder) -> Iterator[Exchange]:
    """Return what a run's models were asked and said. Raises RunError."""
    for event in read_events(folder.journal):
        if isinstance(event, Proposed):
            yield from (get_exchange(folder.blobs, record) for record in event.exchanges)


class _Versioned(msgspec.Struct):
    schema_version: int


def _copy_task(task: Task, target: Path) -> None:
    target.mkdir()
    for file in sorted(task.folder.iterdir()):
        if file.is_file() and (file.stat().st_size <= TASK_FILE_LIMIT or file.name == task.space):
            shutil.copyfile(file, target / file.name)
    described = target / "task.toml"
    text = described.read_text("utf-8")
    if "name" not in tomllib.loads(text):  # it was the folder's
        described.write_text(f"name = {json.dumps(task.name)}\n{text}", "utf-8")


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{error.filename or path} can't be used: {reason}.") from error
