"""Brute-forced search spaces in files: Kernel Tuner's cache files and the auto-tuning community's T4 results."""

from __future__ import annotations

import re
from pathlib import Path

from mctskernel.core.space import SearchSpace, SpaceError
from mctskernel.profiling.spaces import kernel_tuner, t4
from mctskernel.profiling.spaces.document import read_document
from mctskernel.profiling.spaces.kernel_tuner import write_space

__all__ = ["read_space", "space_name", "write_space"]


def read_space(path: Path) -> SearchSpace:
    """The space of a file, compressed by gzip or not, whose format is recognised by its content. Raises SpaceError."""
    document, notes = read_document(path)
    if kernel_tuner.is_form(document):
        return kernel_tuner.read(document, path, space_name(path), notes)
    if t4.is_form(document):
        return t4.read(document, path, space_name(path), notes)
    keys = ", ".join(f"'{key}'" for key in list(document)[:5]) or "nothing"
    raise SpaceError(
        f"{path} is neither a cache file of Kernel Tuner (which has 'cache' and 'tune_params') nor a file of T4 "
        f"results (which has 'results'); it has {keys}."
    )


def space_name(path: Path) -> str:
    """What the space of a file is called: the file's name without its suffixes, of letters, digits, '_', '-', '.'."""
    stem = re.sub(r"\.json(\.gz)?$", "", path.name)
    return re.sub(r"[^\w.-]", "_", stem).lstrip(".-") or "space"
