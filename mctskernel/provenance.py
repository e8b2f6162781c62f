"""Where what a run taught comes from: which run, which device, which programs."""

from __future__ import annotations

import hashlib

from mctskernel.run import Manifest, RunFolder
from mctskernel.tree.journal import read_events


def run_identity(folder: RunFolder, manifest: Manifest) -> str:
    """A name of the run, 16 hexadecimal digits: the same wherever its folder is and however often it is resumed.

    It is a digest of when the run was made, of its task and seed, and of its first event. Raises JournalError.
    """
    first = next(read_events(folder.journal), None)
    began = repr(first.at) if first is not None else ""
    text = f"{manifest.created} {manifest.configuration.task} {manifest.configuration.seed} {began}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
