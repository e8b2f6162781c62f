"""How results are written: JSON with the command, machine and versions at its head, and Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.profiling.versions import package_versions

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
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def page(title: str, *blocks: str) -> str:
    """Join a title and blocks of Markdown to a page without a newline at its end; empty blocks are left out."""
    return "\n\n".join([f"# {title}", *filter(None, blocks)])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make an aligned Markdown table; the first column is text and the others are numbers."""
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join((first, *others))} |"

    rule = ("-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:]))
    return "\n".join(map(line, (columns, rule, *rows)))


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
