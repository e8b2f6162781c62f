"""What a task that came over the network asks to be judged on."""

from __future__ import annotations

from pathlib import Path

from mctskernel.core.kernel import SOURCE_LANGUAGES
from mctskernel.core.task import TaskError
from mctskernel.executors.http_api import OpenSession
from mctskernel.profiling.architecture import known_architectures
from mctskernel.serving.session_protocol import Open
from mctskernel.serving.settings import Settings


def opening_of(request: OpenSession, settings: Settings, folder: Path) -> Open:
    """How a session's process opens a task that is in a folder. Raises TaskError for what can't be had here."""
    if request.language not in SOURCE_LANGUAGES:
        raise TaskError(f"Kernels in the language '{request.language}' can't be built.")
    return Open(
        settings.kind,
        str(folder),
        _architecture(request.architecture, settings),
        request.seed,
        request.language,
        request.trial,
        settings.workers,
        settings.options,
        tuple(map(str, settings.reads)),
        settings.opener,
    )


def _architecture(wanted: str, settings: Settings) -> str:
    """A client's choice where GPUs are modelled: a name alone, since a path would be one of this machine."""
    if settings.kind == "gpu" or not wanted:
        return settings.architecture
    known = known_architectures()
    if wanted.upper() not in known:
        raise TaskError(f"No GPU called {wanted[:50]!r} is described here: there are {', '.join(known)}.")
    return wanted.upper()
