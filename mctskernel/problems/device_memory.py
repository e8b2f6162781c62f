"""How much memory there is to search a problem with, asked before anything of it is made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.task import TaskError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Memory:
    """Bytes, and in words whose they are."""

    size: int
    owner: str

    def require(self, needed: int, name: str) -> None:
        """Raise TaskError with a sentence if a problem needs more bytes than there are."""
        if needed > self.size:
            raise TaskError(
                f"{name} needs at least {needed / 1e9:.1f} GB for its inputs, weights and outputs, and {self.owner} "
                f"has {self.size / 1e9:.1f} GB: search it where there is more, or write smaller sizes into it."
            )


def available_memory() -> Memory:
    """The memory of the first GPU, or of this machine if it has none or less."""
    import torch  # noqa: PLC0415 - an extra

    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text("ascii").strip() if _CGROUP_LIMIT.is_file() else ""
    if limit.isdecimal():
        host = min(host, int(limit))
    if torch.cuda.is_available():
        total = int(torch.cuda.get_device_properties(0).total_memory)
        if total < host:
            return Memory(total, torch.cuda.get_device_name(0))
    return Memory(host, "this machine")
