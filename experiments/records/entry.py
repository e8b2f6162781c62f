"""What an entry of the page of results is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mctskernel.experiments.records.renderers import Renderer


class Group(enum.Enum):
    """Headings of the page of results, in their order."""

    SEARCHES = "Searches on a GPU"
    EVALUATOR = "The evaluator on a GPU"
    MODEL = "The model"
    STRATEGIES = "Strategies"
    TRUST = "What can't be cheated, and what is found"
    ENGINE = "The engine"


@dataclass(frozen=True)
class Entry:
    """A result: the file of its data in the results' folder, what is rendered from it, and what to know.

    Data in a folder of its own stands for all files of that folder; `beside` are more files of data.
    """

    data: str
    group: Group
    remark: str = ""
    renderers: Mapping[str, Renderer] = field(default_factory=dict)
    beside: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """What the page calls the data."""
        folder = Path(self.data).parent.as_posix()
        return self.data if folder == "." else f"{folder}/"
