"""manifest.json: what a sweep was asked for and with what it was made, enough to make it again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

import mctskernel
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt, parse_toml
from mctskernel.experiments.ablation.configuration import Ablation, differences
from mctskernel.experiments.ablation.names import AblationError
from mctskernel.experiments.ablation.results import SubjectAccount
from mctskernel.experiments.records.provenance import Provenance, provenance_here

FILE = "manifest.json"

SCHEMA = "mctskernel.ablation-manifest"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sweep comes from, and how far it is.

    `configuration` is TOML, `digest` what tells it from others. `code` are digests of the sources, more than one where
    they changed while the sweep was cut off. Of `planned` trials `trials` are made, in `seconds` of all the processes
    that swept.
    """

    configuration: str
    digest: str
    provenance: Provenance
    code: tuple[str, ...]
    subjects: tuple[SubjectAccount, ...]
    planned: int
    trials: int = 0
    seconds: float = 0.0
    schema: str = SCHEMA
    schema_version: int = 1


def open_manifest(
    out: Path, ablation: Ablation, subjects: tuple[SubjectAccount, ...], planned: int
) -> Manifest:
    """The manifest of a sweep that begins in a folder, or goes on there.

    Raises AblationError where the folder holds a sweep of another configuration, or something else.
    """
    if not (out / FILE).exists():
        if out.exists() and any(out.iterdir()):
            raise AblationError(f"{out} already holds something that is no ablation: choose another --out.")
        out.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(
            configuration=ablation.text,
            digest=ablation.digest,
            provenance=provenance_here(),
            code=(code_digest(),),
            subjects=subjects,
            planned=planned,
        )
        write_manifest(out, manifest)
        return manifest
    then = read_manifest(out)
    if then.digest != ablation.digest:
        changed = (
            "; ".join(differences(parse_toml(then.configuration), ablation.document)) or "its form changed"
        )
        raise AblationError(
            f"{out} holds trials of another configuration: {changed}. Choose another --out, or ask for the same."
        )
    for before, now in zip(then.subjects, subjects, strict=True):
        if before != now:
            raise AblationError(
                f"{out} holds trials of another '{before.name}': what it is now has the digest {now.digest}, not "
                f"{before.digest}. Choose another --out."
            )
    return msgspec.structs.replace(then, code=tuple(dict.fromkeys((*then.code, code_digest()))))


def read_manifest(out: Path) -> Manifest:
    """The manifest of a sweep's folder. Raises AblationError."""
    file = out / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise AblationError(f"{out} is no ablation: it has no {FILE}.") from error
    except (OSError, *UNDECODABLE) as error:
        raise AblationError(f"{file} is no ablation's: {excerpt(error)}.") from error
    if found.schema != SCHEMA:
        raise AblationError(f"{file} is no ablation's: its schema is {found.schema[:80]}.")
    return found


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Write manifest.json. Raises OSError."""
    write_whole(out / FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def code_digest() -> str:
    """Of the package's sources: what another version finds may be something else."""
    found = hashlib.sha256()
    root = Path(mctskernel.__file__).parent
    for room in ROOMS:
        path = root / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


ROOMS = (
    "core",
    "tree",
    "edits",
    "profiling",
    "executors",
    "search.py",
    "opening.py",
    "runner.py",
    "starts.py",
)
"""What decides on what a search finds."""
