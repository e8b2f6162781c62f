"""One input read under watch: how it ends, what it costs, and whether it reaches beyond its own folder.

A reader may take an input or refuse it in its own words. Everything else is a defect: another exception, more than
`MOST_SECONDS` of the processor's time or `MOST_BYTES` of memory, a file elsewhere, a process, a socket, or code that is
run. What is reached for is known from Python's audit events, and so is what a library does on the reader's behalf.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

MOST_SECONDS = 1.0
"""Of the processor's time."""

MOST_BYTES = 200 << 20

HANGING_SECONDS = 10.0
"""When a reader is interrupted."""

LONGEST_MESSAGE = 20_000
"""Characters of a refusal: it may quote what it refuses."""


class DefectError(AssertionError):
    """What a reader may not do; the message says what it did."""


@dataclass(frozen=True)
class Reading:
    """How an input was read: the words of its refusal, empty where it was taken, and seconds of the processor."""

    refusal: str
    seconds: float


def watched(
    read: Callable[[bytes, Path], None], refusals: tuple[type[Exception], ...], data: bytes, folder: Path
) -> Reading:
    """Read an input, for which `folder` may be used. Raises DefectError."""
    refusal = ""
    resident, most = _resident_bytes(), _most_resident_bytes()
    began = time.thread_time()
    try:
        with _interrupted_if_hanging(), _confined(folder) as reached, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(data, folder)
    except refusals as error:
        refusal = f"{type(error).__name__}: {error}"
        if not str(error).strip() or len(refusal) > LONGEST_MESSAGE:
            raise DefectError(
                f"{type(error).__name__} of {len(str(error))} characters is no sentence"
            ) from error
    except _HangingError:
        raise DefectError(f"it takes more than {HANGING_SECONDS:g} s") from None
    except AssertionError:
        raise
    except (Exception, SystemExit) as error:
        raise DefectError(f"{type(error).__name__}: {str(error)[:300]}") from error
    seconds = time.thread_time() - began
    now = _most_resident_bytes()
    if reached:
        raise DefectError(f"it reaches for {reached[0]}")
    # A peak that is older is not this input's.
    taken = [f"{seconds:.1f} s"] if seconds > MOST_SECONDS else []
    taken += [f"{now - resident >> 20} MiB"] if now > most and now - resident > MOST_BYTES else []
    if taken:
        raise DefectError(f"it takes {' and '.join(taken)}")
    return Reading(refusal, seconds)


def kind_of(refusal: str) -> str:
    """A refusal without what it quotes: two that differ in nothing else are of one kind."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\([^)]*\)", "…", refusal)
    return re.sub(r"\W*\S*[/\d]\S*\W*", " … ", words)[:60]


class _HangingError(BaseException):
    """Not an Exception, so that no reader takes it for its own."""


@contextlib.contextmanager
def _interrupted_if_hanging() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise _HangingError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


_REACHING = (
    "open",
    "os.",
    "socket.",
    "subprocess.",
    "shutil.",
    "ctypes.",
    "sqlite3.",
    "import",
    "exec",
    "pty.",
)
_HARMLESS = frozenset({"socket.__new__", "sqlite3.connect/handle"})
_NO_FILE = "<unknown>"
"""Where Python looks for the line of a syntax error in a text that `ast.parse` was given."""


class _Watch:
    """The one audit hook of the process, which can't be taken away: it listens while there is a folder."""

    folder = ""
    thread = 0
    reached: list[str] = []  # noqa: RUF012 - there is one watch
    installed = False


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if not _Watch.folder or not event.startswith(_REACHING) or event in _HARMLESS:
        return
    if threading.get_ident() != _Watch.thread:
        return
    place = arguments[0] if arguments else ""
    if isinstance(place, CodeType):
        place = place.co_filename
    if event == "import" and str(place).startswith("encodings."):  # looked up when it is first named
        return
    if isinstance(place, int) or place == _NO_FILE:  # a file that is open already
        return
    if isinstance(place, str | bytes | os.PathLike):
        whole = os.path.abspath(os.fsdecode(place))  # noqa: PTH100 - resolving a Path asks the disk, an event of its own
        if whole.startswith(_Watch.folder):
            return
    _Watch.reached.append(f"{event} {str(place)[:200]}")


@contextlib.contextmanager
def _confined(folder: Path) -> Iterator[list[str]]:
    if not _Watch.installed:
        sys.addaudithook(_listen)
        _Watch.installed = True
    _Watch.reached, _Watch.thread = [], threading.get_ident()
    _Watch.folder = str(folder.resolve())
    try:
        yield _Watch.reached
    finally:
        _Watch.folder = ""


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _most_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
