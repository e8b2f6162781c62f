"""Where a result comes from: the command, the machine, the day and the versions, at the head of its JSON."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.profiling.versions import package_versions

T = TypeVar("T")

PACKAGES = ("numpy", "nvidia-cuda-nvrtc", "triton", "torch")


class Provenance(msgspec.Struct, frozen=True):
    """What made a result. `command` is what a shell would be given, paths of the user's left as words in capitals."""

    command: str
    machine: str
    date: str
    versions: dict[str, str] = {}


class Rows(msgspec.Struct, Generic[T], frozen=True):
    """The file of a result that is a list."""

    provenance: Provenance
    rows: list[T]


class _Headed(msgspec.Struct, frozen=True):
    provenance: Provenance


def provenance_here(command: str = "") -> Provenance:
    """Of what this process makes; `command` where the words that it was started with don't say it well."""
    versions = {"python": platform.python_version(), **package_versions(*PACKAGES)}
    known = {name: version for name, version in versions.items() if version != "not installed"}
    return Provenance(command or _command(), _machine(), datetime.now(UTC).date().isoformat(), known)


def write_result(path: Path, result: object, provenance: Provenance | None = None) -> None:
    """Write a result as JSON under its provenance: beside the fields of an object, above the `rows` of a list."""
    plain = msgspec.to_builtins(result)
    fields: Mapping[str, object] = plain if isinstance(plain, dict) else {"rows": plain}
    document = {"provenance": provenance or provenance_here(), **fields}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def read_provenance(data: bytes) -> Provenance:
    """The head of a result. Raises msgspec.ValidationError where there is none."""
    return msgspec.json.decode(data, type=_Headed).provenance


def _command() -> str:
    """With folders of the user's cut down to the last name."""
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
        # Imported here: it needs the driver's bindings.
        from mctskernel.profiling.gpu.cuda_driver import describe_gpu  # noqa: PLC0415 - as said above

        return f"{describe_gpu()}; {host}"
    except (DeviceError, ImportError):
        return host
