"""How results are written: JSON with the command, machine and versions at its head, Markdown, and 95 % intervals."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from mctskernel.core.device import DeviceError
from mctskernel.core.disk import write_whole
from mctskernel.core.task import Array
from mctskernel.profiling.versions import package_versions
from mctskernel.report.resampling import CONFIDENCE, RESAMPLES, Estimate
from mctskernel.report.terminal import table_lines

PACKAGES = ("numpy", "nvidia-cuda-nvrtc", "triton", "torch")


class Provenance(msgspec.Struct, frozen=True):
    """What made a result. Of the paths in `command` only the last names are kept."""

    command: str
    machine: str
    date: str
    versions: dict[str, str] = {}


def provenance_here(command: str = "") -> Provenance:
    """Describe this process; an empty `command` means the words that it was started with."""
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


def page(title: str, *blocks: str) -> str:
    """Join a title and blocks of Markdown to a page without a newline at its end; empty blocks are left out."""
    return "\n\n".join([f"# {title}", *filter(None, blocks)])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a Markdown table of cells as they are shown; the first column is text and the others are numbers."""
    return "\n".join(table_lines(columns, rows))


def interval_text(found: Estimate, form: str) -> str:
    """Write `mean (low to high)`, each in a format such as `.3f`."""
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"


def clustered_mean(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """The mean of all values, and its percentile interval when whole clusters are drawn again with replacement.

    Values of one cluster may depend on each other. With one cluster the interval says nothing, and is the mean.
    Source: Davison and Hinkley, "Bootstrap methods and their application", 1997, section 3.8. Raises ValueError without
    values.
    """
    if not values:
        raise ValueError("There is no mean of no values.")
    names = list(dict.fromkeys(clusters))
    place = [names.index(each) for each in clusters]
    sums = np.bincount(place, values)
    counts = np.bincount(place)
    drawn = np.random.default_rng(0).integers(len(names), size=(RESAMPLES, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(np.mean(values)), float(low), float(high))


def cluster_means(values: Sequence[float], clusters: Sequence[str]) -> Array:
    """The mean of each cluster's values."""
    _, place = np.unique(clusters, return_inverse=True)
    return np.asarray(np.bincount(place, values) / np.bincount(place))


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
