"""A run on disk: created, opened for reading, resumed.

run.json        schema version, task, configuration, fingerprint
journal.jsonl   append-only events; replaying them makes the tree
blobs/          sources, compiler logs and other texts by SHA-256
task/           the task folder as it was when the run began
best/           the fastest kernel that passed every guard, and its trajectory
profiles/       full Nsight Compute reports of nodes that were asked for
memory.json     what the memory held when this run began, if it uses one
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mctskernel import __version__
from mctskernel.core.device import DeviceSpec
from mctskernel.core.disk import remedy, stray_link, write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Language
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import BadRunError
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import LLMOptions
from mctskernel.forecast import ForecastOptions
from mctskernel.profiling.reward import DEFAULT
from mctskernel.tree.journal import read_events
from mctskernel.tree.policy import Policy

SCHEMA_VERSION = 1
TASK_FILE_LIMIT = 16 << 20
"""Bytes above which a file of the task folder stays behind: no dataset is copied into every run."""


class RunError(BadRunError, RuntimeError):
    """A run folder that can't be created, read or continued; the message names the file."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a search stops, whichever comes first; None is no limit."""

    evaluations: int | None = None
    seconds: float | None = None
    dollars: float | None = None

    def left(self, evaluations: int, seconds: float, dollars: float) -> Budget:
        """What is left of it when so much is spent; never less than nothing."""
        return Budget(
            None if self.evaluations is None else max(0, self.evaluations - evaluations),
            None if self.seconds is None else max(0.0, self.seconds - seconds),
            None if self.dollars is None else max(0.0, self.dollars - dollars),
        )

    def spent_fraction(self, evaluations: int, seconds: float, dollars: float) -> float:
        """How much of it is spent when so much is, from 0 to 1, by whichever limit is nearest."""
        pairs = ((evaluations, self.evaluations), (seconds, self.seconds), (dollars, self.dollars))
        return min(1.0, max((spent / limit for spent, limit in pairs if limit), default=0.0))


class Spent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What went to starting configurations that failed, before the one that the search began at."""

    evaluations: int = 0
    seconds: float = 0.0


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user chose, and enough to go on with it. Without `forecasts` nothing is predicted.

    `device` is what a `DeviceSpec` calls its kind; `workers` are 0 for as many as a cluster has room for.
    `spent` counts against the budget. `memory` is the file that earlier runs taught and this one is to be added to,
    None for no such file. `llm` is the model that proposes edits, with the experts of `mixture`; None for rules.
    `replayed` is the folder of the run that this one repeats, with the replies that its model gave. `reward` names
    a registered one.
    """

    task: str
    device: str
    architecture: str
    proposer: str
    seed: int
    workers: int
    budget: Budget
    policy: Policy
    language: Language = Language.CUDA
    forecasts: ForecastOptions | None = None
    spent: Spent = Spent()
    memory: str | None = None
    llm: LLMOptions | None = None
    mixture: MixtureOptions | None = None
    replayed: str | None = None
    reward: str = DEFAULT
    executor: ExecutorOptions = LOCAL


class Origin(msgspec.Struct, frozen=True):
    """The run whose kernels a run has measured again: its folder, and the fingerprint of its device."""

    run: str
    fingerprint: dict[str, str]


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of run.json. `measured_from` is None for a search that began at the starting kernel.

    `unverified_reference` says that a model wrote the task's reference, which was not checked when the run began.
    """

    schema_version: int
    created: str
    version: str
    configuration: Configuration
    fingerprint: dict[str, str]
    measured_from: Origin | None = None
    unverified_reference: bool = False


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
    def memory(self) -> Path:
        """memory.json."""
        return self.path / "memory.json"

    @property
    def profiles(self) -> Path:
        """The folder of Nsight Compute's reports."""
        return self.path / "profiles"

    def device_spec(self, configuration: Configuration) -> DeviceSpec:
        """How a worker opens this run's device."""
        return DeviceSpec(
            configuration.device,
            self.task,
            architecture=configuration.architecture,
            seed=configuration.seed,
            language=configuration.language,
        )

    def load_task(self) -> Task:
        """The task as it was when the run began, starting from its kernel in the run's language. Raises TaskError."""
        return load_task(self.task, read_manifest(self).configuration.language)


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
    configuration: Configuration,
    fingerprint: dict[str, str],
    measured_from: Origin | None = None,
    *,
    unverified_reference: bool = False,
) -> None:
    """Write run.json; from then on the folder is a run. Raises RunError."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        SCHEMA_VERSION, created, __version__, configuration, fingerprint, measured_from, unverified_reference
    )
    write_text(folder.manifest, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode() + "\n")


def discard_run(folder: RunFolder) -> None:
    """Remove a prepared folder that never became a run, so that its name can be used again."""
    if not folder.manifest.exists():
        shutil.rmtree(folder.path, ignore_errors=True)


def open_run(path: Path) -> RunFolder:
    """A run folder for reading. Raises RunError when it isn't one."""
    folder = RunFolder(path)
    if not folder.manifest.is_file():
        raise RunError(f"{path} is not a run: it has no run.json.")
    read_manifest(folder)
    return folder


def read_manifest(folder: RunFolder) -> Manifest:
    """run.json; refuses one from a newer version, and a folder with links to elsewhere, with a sentence."""
    with _sentences(folder.manifest):
        if (stray := stray_link(folder.path)) is not None:
            raise RunError(f"{stray} is a link that leads out of the run's folder, which a run never has.")
        data = folder.manifest.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise RunError(
                f"{folder.manifest} has schema version {version}; this mctskernel {__version__} reads up to "
                f"{SCHEMA_VERSION}. Install a newer mctskernel."
            )
        return msgspec.json.decode(data, type=Manifest)
    except UNDECODABLE as error:
        raise RunError(f"{folder.manifest} is not a run's: {excerpt(error)}.") from error


def run_identity(folder: RunFolder, manifest: Manifest) -> str:
    """A name of the run, 16 hexadecimal digits: the same wherever its folder is and however often it is resumed.

    It is a digest of when the run was made, of its task and seed, and of its first event. Raises JournalError.
    """
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


class _Versioned(msgspec.Struct):
    schema_version: int


def _copy_task(task: Task, target: Path) -> None:
    target.mkdir()
    for file in sorted(task.folder.iterdir()):
        if file.is_file() and (file.stat().st_size <= TASK_FILE_LIMIT or file.name == task.space):
            shutil.copyfile(file, target / file.name)


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"{error.filename or path} can't be used: {reason}.") from error


_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(BadRunError, RuntimeError):
    """A blob that is missing, damaged or can't be written; the message is a sentence that names the file."""


@dataclass(frozen=True)
class BlobStore:
    """A folder of texts in a run, each in a file named by its digest, written once and never changed."""

    folder: Path

    def put(self, text: str) -> str:
        """Store a text and return its digest: on disk when this returns. Raises BlobError."""
        data = text.encode(errors="replace")
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not _holds(path, data):
                # Not the run's own folder: one that was moved away must not come back with nothing but this in it.
                self.folder.mkdir(exist_ok=True)
                path.parent.mkdir(exist_ok=True)
                write_whole(path, data)
        except OSError as error:
            raise BlobError(
                f"{path} can't be written: {error.strerror}. {remedy(error, self.folder.parent)}"
            ) from error
        return digest

    def get(self, digest: str) -> str:
        """The text of a digest. Raises BlobError when it is missing or no longer matches."""
        if not _DIGEST.fullmatch(digest):
            raise BlobError(f"{digest!r} is not a SHA-256 digest.")
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BlobError(f"The blob {path} can't be read: {error.strerror}.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise BlobError(f"The blob {path} is damaged: its content doesn't match its name.")
        return data.decode()

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest


def _holds(path: Path, data: bytes) -> bool:
    """Whether a file is there and as it should be: one that was damaged is written again."""
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
