"""An order: what a user wants a kernel for, in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import NoKernelError


class GenerationError(NoKernelError, RuntimeError):
    """No kernel came out that is right, or no task that can be used; the message says what was wrong."""


@dataclass(frozen=True)
class Order:
    """What a user wants, in words, and where the task is to be made.

    `reference` and `task_file` are the texts of the user's reference.py and task.toml, empty where a model is to write
    them.
    """

    wanted: str
    folder: Path
    language: Language = Language.CUDA
    reference: str = ""
    task_file: str = ""

    @property
    def unanchored(self) -> bool:
        """Whether a model says what is right."""
        return not self.reference

    @property
    def kernel_file(self) -> Path:
        """Where the starting kernel is."""
        return self.folder / f"kernel{self.language.suffix}"
