"""How long each stage of an evaluation took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

STAGE_FILE = "stage"  # where a worker writes down which stage it is at, in its own folder


class Stages:
    """Wall-clock seconds by stage, in the order in which the stages began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to a stage, however it is left."""
        self.seconds.setdefault(stage, 0.0)
        _write_down(stage)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - began

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds that a stage measured itself."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value


_noted: list[Path] = []


def note_stages_in(folder: Path) -> None:
    """From now on, write each stage that begins into a file: its process may be ended before the stage is."""
    _noted[:] = [folder / STAGE_FILE]


def _write_down(stage: str) -> None:
    for file in _noted:
        with suppress(OSError):
            file.write_text(stage)
