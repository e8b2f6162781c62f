"""What an agent is told in a sentence, so that it can mend it."""

from __future__ import annotations

from mctskernel.asks import ReplyError
from mctskernel.blobs import BlobError
from mctskernel.core.device import DeviceError
from mctskernel.core.space import SpaceError
from mctskernel.core.task import TaskError
from mctskernel.memory import MemoryUnusableError
from mctskernel.run import RunError
from mctskernel.tree.journal import JournalError


class RequestError(ValueError):
    """A request that can't be granted; the message is a sentence for the agent."""


MENDABLE: tuple[type[Exception], ...] = (
    RequestError,
    ReplyError,
    TaskError,
    SpaceError,
    RunError,
    JournalError,
    BlobError,
    DeviceError,
    MemoryUnusableError,
)
"""Everything that says in a sentence what is wrong; anything else is a mistake of this program's."""
