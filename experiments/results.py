"""The results that this repository keeps, each with what renders it, and docs/results/README.md, made from them.

    python -m mctskernel.experiments.results [--folder docs/results]           what is not what its JSON says
    python -m mctskernel.experiments.results --write [--folder docs/results]   render all of it again

A result is a JSON file with its provenance at its head (`records.provenance.write_result`) and an `Entry` in
`records.entries.ENTRIES`; its tables and plots are rendered from the JSON alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from mctskernel.experiments.records.entries import ENTRIES
from mctskernel.experiments.records.entry import Entry, Group
from mctskernel.experiments.records.provenance import Provenance, read_provenance

README = "README.md"

INTRODUCTION = """\
# Where these results come from

Each file was printed by a command of this repository, and says at its head, under `provenance`, which one, on what
machine, when, and with which versions. Tables and plots are rendered from the JSON beside them, this page included, by
`python -m mctskernel.experiments.results --write`, and a test compares every byte; only the remarks in the last column
were written by hand. The H100 was lent several times, so UUIDs differ between files and between rows.
"""

_MATPLOTLIB = re.compile(r"Matplotlib v(\d+\.\d+\.\d+)")


class Problem(msgspec.Struct, frozen=True):
    """A file that is not what it should be, and why."""

    file: str
    sentence: str


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("docs/results"),
    show_default=True,
)
@click.option("--write", is_flag=True, help="Render every table, every plot and the README again.")
@click.option("--only", default="", help="Render those whose names contain this.")
def main(*, folder: Path, write: bool, only: str) -> None:
    """Compare what is rendered with its JSON, or write it."""
    if write:
        chosen = [entry for entry in ENTRIES if only in entry.data]
        for name, data in rendered(folder, chosen):
            (folder / name).write_bytes(data)
        (folder / README).write_bytes(readme(folder, ENTRIES).encode())
    problems = list(check(folder, ENTRIES))
    for problem in problems:
        click.echo(f"{problem.file}: {problem.sentence}")
    if problems:
        raise click.ClickException(f"{len(problems)} files are not what they should be.")


def check(folder: Path, entries: Sequence[Entry]) -> Iterator[Problem]:
    """What is wrong with a folder of results: no provenance, not as rendered, missing, or of no entry."""
    known = {README, *(name for entry in entries for name in _files(entry))}
    for entry in entries:
        missing = [name for name in _files(entry) if not (folder / name).exists()]
        yield from (Problem(name, "It has an entry, and isn't there.") for name in missing)
        if not missing:
            yield from _entry_problems(folder, entry)
    folders = tuple(f"{Path(entry.data).parent}/" for entry in entries if "/" in entry.data)
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name not in known and not name.startswith(folders):
            yield Problem(name, "It has no entry in mctskernel.experiments.records.entries.")
    try:
        text = readme(folder, entries)
    except (OSError, msgspec.MsgspecError):
        return
    if not (folder / README).exists() or (folder / README).read_text(encoding="utf-8") != text:
        yield Problem(README, "It is not what the entries say: write it again.")


def rendered(folder: Path, entries: Iterable[Entry]) -> Iterator[tuple[str, bytes]]:
    """The files that are made of the entries' data, by name."""
    for entry in entries:
        for name, render in entry.renderers.items():
            yield name, render(folder)


def readme(folder: Path, entries: Sequence[Entry]) -> str:
    """The page that says where each result comes from. Raises OSError, msgspec.MsgspecError."""
    parts = [INTRODUCTION]
    for group in Group:
        members = [entry for entry in entries if entry.group is group]
        if not members:
            continue
        parts.append(f"\n## {group.value}\n\n| file | command | on | what to know |\n|---|---|---|---|\n")
        parts += [_line(entry, read_provenance((folder / entry.data).read_bytes())) for entry in members]
    return "".join(parts)


def _files(entry: Entry) -> tuple[str, ...]:
    return (entry.data, *entry.beside, *entry.renderers)


def _entry_problems(folder: Path, entry: Entry) -> Iterator[Problem]:
    try:
        read_provenance((folder / entry.data).read_bytes())
    except msgspec.MsgspecError as error:
        yield Problem(entry.data, f"It doesn't say where it comes from: {error}.")
        return
    for name, data in rendered(folder, [entry]):
        found = (folder / name).read_bytes()
        if found != data and not _of_another_matplotlib(found, data):
            yield Problem(name, f"It is not what {entry.data} says: write it again.")


def _of_another_matplotlib(first: bytes, second: bytes) -> bool:
    """Whether two plots were drawn by different versions, so that their bytes say nothing."""
    versions = [_MATPLOTLIB.search(each.decode("utf-8", "replace")) for each in (first, second)]
    return all(versions) and len({each.group(1) for each in versions if each}) > 1


def _line(entry: Entry, provenance: Provenance) -> str:
    files = ", ".join(_link(name) for name in (entry.shown, *entry.beside, *entry.renderers))
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    where = f"{provenance.date}, {provenance.machine}" + (f" ({versions})" if versions else "")
    cells = (files, f"`{provenance.command}`", where, entry.remark)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _link(name: str) -> str:
    return f"[{name}]({name})" if name.endswith(".md") else f"`{name}`"


if __name__ == "__main__":
    main()
