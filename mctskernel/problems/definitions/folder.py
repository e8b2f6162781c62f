"""Where a definition lies, its workloads, and the files that these name: read within bounds, and nowhere else.

a problem of SOL-ExecBench     DIR/definition.json   DIR/workload.jsonl   files named from DIR
flashinfer-bench's data set    ROOT/definitions/**/NAME.json   ROOT/workloads/**/NAME.jsonl   files named from ROOT
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.documents import UNDECODABLE, excerpt
from mctskernel.core.task import TaskError
from mctskernel.problems.definitions.schema import Definition, Workload

FLASHINFER_BENCH = "flashinfer-bench"
SOL_EXECBENCH = "SOL-ExecBench"

MOST_BYTES = 16 << 20
"""Of a definition, and of a file of workloads."""

MOST_WORKLOADS = 1000

DATA_VARIABLE = "FLASHINFER_TRACE_DIR"
"""Where SOL-ExecBench's own harness looks for files, too."""


class WorkloadTrace(msgspec.Struct, frozen=True):
    """A workload as flashinfer-bench writes it: a trace without a solution."""

    definition: str
    workload: Workload


_TRACES = msgspec.json.Decoder(WorkloadTrace)
_WORKLOADS = msgspec.json.Decoder(Workload)


@dataclass(frozen=True)
class Found:
    """A definition with its workloads, and the folders that the paths of their files begin at."""

    benchmark: str
    definition: Definition
    workloads: tuple[Workload, ...]
    roots: tuple[Path, ...]

    def file(self, path: str) -> Path:
        """A file that a workload names. Raises TaskError for one that isn't there, or leads out of the folder."""
        for root in self.roots:
            home, file = root.resolve(), (root / path).resolve()
            if Path(path).is_absolute() or not file.is_relative_to(home):
                raise TaskError(f"A workload names {path!r}, which leads out of {root}.")
            if file.is_file():
                return file
        where = " and ".join(str(root) for root in self.roots)
        raise TaskError(
            f"A workload names {path!r}, which isn't in {where} (set {DATA_VARIABLE} to where it is)."
        )


def is_definition(path: Path, benchmark: str) -> bool:
    """Whether a path holds a problem of this benchmark, or problems; nothing is read of what they say."""
    if path.is_dir():
        if (path / "definition.json").is_file():
            return benchmark == SOL_EXECBENCH
        return benchmark == FLASHINFER_BENCH and (path / "definitions").is_dir()
    if path.suffix != ".json" or not path.is_file():
        return False
    if path.name == "definition.json":
        return benchmark == SOL_EXECBENCH
    return benchmark == FLASHINFER_BENCH and _root_of(path) is not None


def find_definition(path: Path) -> Found:
    """The definition at a path: a folder, or the definition's own file. Raises TaskError."""
    if path.is_dir() and not (path / "definition.json").is_file():
        raise TaskError(_several(path))
    file = path / "definition.json" if path.is_dir() else path
    definition = read_definition(file)
    root = _root_of(file) if file.name != "definition.json" else None
    if root is None:
        benchmark, roots, workloads = SOL_EXECBENCH, [file.parent], file.with_name("workload.jsonl")
    else:
        benchmark, roots = FLASHINFER_BENCH, [root]
        named = (
            sorted((root / "workloads").rglob(f"{definition.name}.jsonl")) if _plain(definition.name) else []
        )
        workloads = named[0] if named else root / "workloads" / f"{definition.name}.jsonl"
    elsewhere = os.environ.get(DATA_VARIABLE)
    if elsewhere and benchmark == SOL_EXECBENCH:
        roots.append(Path(elsewhere))
    return Found(benchmark, definition, read_workloads(workloads), tuple(roots))


def read_definition(file: Path) -> Definition:
    """A definition's file. Raises TaskError."""
    try:
        return msgspec.json.decode(_bytes(file), type=Definition)
    except UNDECODABLE as error:
        raise TaskError(f"{file} is no definition: {excerpt(error)}.") from error


def read_workloads(file: Path) -> tuple[Workload, ...]:
    """A file of workloads, one a line, as either benchmark writes them. Raises TaskError."""
    found = tuple(_workloads(file))
    if not found:
        raise TaskError(f"{file} holds no workload.")
    if len(found) > MOST_WORKLOADS:
        raise TaskError(f"{file} holds {len(found)} workloads; at most {MOST_WORKLOADS} are read.")
    uuids = [each.uuid for each in found]
    twice = next((each for each in uuids if uuids.count(each) > 1), None)
    if twice is not None:
        raise TaskError(f"{file} holds the workload {twice!r} twice.")
    return found


def _workloads(file: Path) -> Iterator[Workload]:
    for number, line in enumerate(_bytes(file).split(b"\n"), 1):
        if line.strip():
            try:
                # Either is a JSON object, and only one of them has a workload in it.
                is_trace = "workload" in msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                yield _TRACES.decode(line).workload if is_trace else _WORKLOADS.decode(line)
            except UNDECODABLE as error:
                raise TaskError(f"{file}, line {number} is no workload: {excerpt(error)}.") from error


def _bytes(file: Path) -> bytes:
    if file.exists() and not file.is_file():
        raise TaskError(f"{file} is not a file.")
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise TaskError(f"{file} is missing.") from error
    except OSError as error:
        raise TaskError(f"{file} can't be read: {error.strerror or error}.") from error
    if len(data) > MOST_BYTES:
        raise TaskError(f"{file} is larger than {MOST_BYTES >> 20} MiB.")
    return data


def _root_of(file: Path) -> Path | None:
    """The data set that a definition's file is in."""
    return next((each.parent for each in file.absolute().parents if each.name == "definitions"), None)


def _plain(name: str) -> bool:
    """Whether a name can be looked for: one that a pattern or a path could be made of can't."""
    return name.replace("-", "_").replace(".", "_").isidentifier()


def _several(path: Path) -> str:
    files = sorted((path / "definitions").rglob("*.json"))
    if not files:
        return f"{path} holds no definition."
    first = ", ".join(str(each) for each in files[:3])
    return f"{path} holds {len(files)} definitions: name the file of one, as {first}."
