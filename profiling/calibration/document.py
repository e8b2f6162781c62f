"""A calibration as the TOML file that `load_architecture` reads."""

from __future__ import annotations

from collections.abc import Mapping

import tomlkit
from tomlkit.items import Table

from mctskernel.profiling.architecture import MEASURED_TABLE
from mctskernel.profiling.calibration.calibration import DIGITS, Calibration, constants


def document(calibration: Calibration, fingerprint: Mapping[str, str]) -> str:
    """The file's text: every constant with where it comes from, then the fingerprint of what measured it."""
    gpu = calibration.architecture
    text = tomlkit.document()
    title = f"{gpu.name}, as `mctskernel calibrate` measured it. Each value names where it comes from."
    text.add(tomlkit.comment(_printable(title)))
    text.add(tomlkit.nl())
    text.add("name", tomlkit.string(gpu.name))
    text.add("architecture", tomlkit.string(gpu.architecture))
    tables: dict[str, Table] = {}
    for path, value in constants(gpu):
        section, field = path.split(".")
        if section not in tables:
            tables[section] = tomlkit.table()
            text.add(section, tables[section])
        tables[section].add(field, value)
        tables[section][field].comment(_printable(_source(calibration, path)))
    text.add(MEASURED_TABLE, _origin(calibration, fingerprint))
    return tomlkit.dumps(text)


def _source(calibration: Calibration, path: str) -> str:
    found = calibration.measured.get(path)
    spread = f" (repeats within {found.spread:.1%})" if found is not None else ""
    return f"{calibration.sources[path]}{spread}"


def _printable(text: str) -> str:
    """A driver's message may hold what a comment can't."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _origin(calibration: Calibration, fingerprint: Mapping[str, str]) -> Table:
    origin = tomlkit.table()
    for key, value in fingerprint.items():
        origin.add(key, value)
    others = tomlkit.table()
    for name, each in calibration.others.items():
        others.add(name, float(f"{each.value:.{DIGITS}g}"))
        others[name].comment(each.why)
    origin.add("others", others)
    return origin
