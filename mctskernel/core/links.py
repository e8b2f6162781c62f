"""Symbolic links in folders that came from somebody else: where they lead out, their files are nobody's to read."""

from __future__ import annotations

import os
from pathlib import Path


def stray_link(folder: Path) -> Path | None:
    """The first link in a folder, or in one of its folders, that leads out of it; the folder may be one itself.

    Raises OSError where the folder can't be listed.
    """
    home = folder.resolve()
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if entry.is_symlink():
            if not Path(entry.path).resolve().is_relative_to(home):
                return Path(entry.path)
        elif entry.is_dir():
            inner = sorted(each.path for each in os.scandir(entry.path) if each.is_symlink())
            stray = next((path for path in map(Path, inner) if not path.resolve().is_relative_to(home)), None)
            if stray is not None:
                return stray
    return None
