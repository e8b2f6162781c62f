"""Builds that are kept on disk: PTX, machine code and the compiler's log, by source, options and compiler.

They are in `mctskernel/builds` in the user's cache folder, or in the folder that MCTSKERNEL_BUILD_CACHE names; `off`
keeps none. Only trusted processes write: a worker, in which a candidate's Python may run, reads the folder, and returns
what it built with its reply (`collect`). Its parent keeps that under the source that it sent to be built (`keep`), so
that no candidate can replace the build of another source. The final validation uses no cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import get_ident

import msgspec

VARIABLE = "MCTSKERNEL_BUILD_CACHE"
OFF = "off"
MAX_BYTES = 1 << 30  # when the folder is larger, the builds that were used least recently are deleted
WRITES_BETWEEN_SWEEPS = 200
MAX_COLLECTED_BYTES = 16 << 20  # the most that a worker returns with one reply
_FORMAT = 1  # to be raised whenever the meaning of stored products changes
_DIGEST_BYTES = 32


class Key(msgspec.Struct, frozen=True):
    """Everything that a build depends on. `options` are the compiler's, `compiler` its name and version."""

    source: str
    options: tuple[str, ...]
    compiler: str


class Entry(msgspec.Struct, frozen=True):
    """A build that a worker made."""

    key: Key
    product: bytes


class _State:
    enabled = True
    collected: list[Entry] | None = None  # in a worker: builds that wait to be returned to the parent

    writes = 0


def cache_folder() -> Path | None:
    """Where builds are kept; None where the cache is off."""
    configured = os.environ.get(VARIABLE, "")
    if configured == OFF or not _State.enabled:
        return None
    if configured:
        return Path(configured).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "mctskernel" / "builds"


def create_folder() -> tuple[Path, ...]:
    """Create the folder, for workers to read; none where the cache is off or the folder can't be made."""
    folder = cache_folder()
    if folder is None:
        return ()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return ()
    return (folder,)


def disable() -> None:
    """Read and keep nothing in this process from now on."""
    _State.enabled = False


def collect() -> None:
    """Keep builds for `take_collected` from now on, instead of writing them: this process is not trusted."""
    _State.collected = []


def take_collected() -> tuple[Entry, ...]:
    """What was built since the last call, as far as it fits into one reply."""
    found, _State.collected = _State.collected or [], []
    total = 0
    fitting = []
    for entry in found:
        total += len(entry.product) + len(entry.key.source)
        if total <= MAX_COLLECTED_BYTES:
            fitting.append(entry)
    return tuple(fitting)


def keep(entries: Iterable[Entry], source: str) -> None:
    """Write what a worker built of the source that it was sent; anything else is ignored."""
    for entry in entries:
        if entry.key.source == source:
            _write(entry.key, entry.product)


def load(key: Key) -> bytes | None:
    """The product of an earlier build; None if there is none, or a damaged one."""
    file = _file(key)
    if file is None:
        return None
    try:
        data = file.read_bytes()
    except OSError:
        return None
    product = data[_DIGEST_BYTES:]
    if hashlib.sha256(product).digest() != data[:_DIGEST_BYTES]:
        return None
    with suppress(OSError):
        # What was used last is deleted last. A worker may not do this, and relies on the file's access time.
        os.utime(file)
    return product


def store(key: Key, product: bytes) -> None:
    """Keep the product of a build."""
    if not _State.enabled:
        return
    if _State.collected is not None:
        _State.collected.append(Entry(key, product))
    else:
        _write(key, product)


def _file(key: Key) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.sha256(msgspec.msgpack.encode((_FORMAT, key))).hexdigest()
    return folder / name[:2] / name[2:]


def _write(key: Key, product: bytes) -> None:
    """Write a whole file or none. A full disk or a folder of another user's costs the cache and nothing else."""
    file = _file(key)
    if file is None:
        return
    temporary = file.with_name(f"{file.name}.{os.getpid()}.{get_ident()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(product).digest() + product)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return
    _State.writes += 1
    if _State.writes % WRITES_BETWEEN_SWEEPS == 1:
        _sweep(file.parents[1])


def _sweep(folder: Path) -> None:
    """Delete the builds that were used least recently until the rest is well within the limit."""
    found = []
    for file in folder.glob("??/*"):
        with suppress(OSError):
            status = file.stat()
            found.append((max(status.st_atime, status.st_mtime), status.st_size, file))
    total = sum(size for _, size, _ in found)
    if total <= MAX_BYTES:
        return
    for _, size, file in sorted(found):
        with suppress(OSError):
            file.unlink()
        total -= size
        if total <= MAX_BYTES * 3 // 4:
            return
