"""How long each stage of an evaluation took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Stages:
    """Wall-clock seconds by stage, in the order in which the stages began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to a stage, however it is left."""
        self.seconds.setdefault(stage, 0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - began

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds that a stage measured itself."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
