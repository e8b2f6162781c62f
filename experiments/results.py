"""How results are written: JSON with the command, machine and versions at its head, lines of JSON, and Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import UNDECODABLE, excerpt, indented_json
from mctskernel.core.user_errors import RunError
from mctskernel.profiling.versions import package_versions

T = TypeVar("T")

PACKAGES = ("numpy", "nvidia-cuda-nvrtc", "triton", "torch")


class Provenance(msgspec.Struct, frozen=True):
    """What made a result. Of the paths in `command` only the last names are kept."""

    command: str
    machine: str
    date: str
    versions: dict[str, str] = {}


def provenance_here() -> Provenance:
    """Describe this process."""
    versions = {"python": platform.python_version(), **package_versions(*PACKAGES)}
    known = {name: version for name, version in versions.items() if version != "not installed"}
    return Provenance(_command(), _machine(), datetime.now(UTC).date().isoformat(), known)


def write_result(path: Path, result: object, provenance: Provenance | None = None) -> None:
    """Write a result as JSON under its provenance: beside the fields of an object, above the `rows` of a list."""
    plain = msgspec.to_builtins(result)
    fields: Mapping[str, object] = plain if isinstance(plain, dict) else {"rows": plain}
    document = {"provenance": provenance or provenance_here(), **fields}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, indented_json(document))


def page(title: str, *blocks: str) -> str:
    """Join a title and blocks of Markdown to a page without a newline at its end; empty blocks are left out."""
    return "\n\n".join([f"# {title}", *filter(None, blocks)])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make an aligned Markdown table; the first column is text and the others are numbers."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = (
        (row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))
        for row in (cells[0], rule, *cells[1:])
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in aligned)


def read_lines(path: Path, decoder: msgspec.json.Decoder[T]) -> list[T]:
    """Read a file of one JSON object a line, none where there is no file, without a torn last line. Raises RunError."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    found = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            found.append(decoder.decode(line))
        except UNDECODABLE as error:
            raise RunError(f"{path}, line {number}: {excerpt(error)}.") from error
    return found


def append_line(path: Path, value: msgspec.Struct) -> None:
    """Append an object: in the file when this returns, in place of a torn last line if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(value) + b"\n")


def _command() -> str:
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    name = specification.name.removesuffix(".__main__") if specification else Path(sys.argv[0]).name
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join((*(("python", "-m") if specification else ()), name, *words))


def _machine() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    host = f"{next(names, platform.machine())}, {os.cpu_count()} cores, {platform.system()}"
    try:
        from mctskernel.profiling.gpu.cuda_driver import describe_gpu  # noqa: PLC0415 - needs the driver's bindings

        return f"{describe_gpu()}; {host}"
    except (DeviceError, ImportError):
        return host
