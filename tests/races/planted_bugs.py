"""Planted bugs: kernels with one defect each, and their twins without it.

A file of this folder holds both. Its lines may end in a comment of these words (`// bug found`, in Triton `#`):

    bug     stands in the faulty kernel alone
    clean   stands in its twin alone
    found   is where the defect must be reported
    other   is where the other party of a race stands

What one of the two leaves out becomes an empty line, so that both have the line numbers of the file. The first comment
after the launch plan says the kind of finding and what is wrong.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mctskernel.core.kernel import Kernel, Language

CORPUS = Path(__file__).parent

_MARK = re.compile(r"\s*(?://|#) (?P<words>(?:(?:bug|clean|found|other)\b ?)+)$")
_KIND = re.compile(r"^(?://|#) (?P<kind>[a-z_]+): (?P<why>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class PlantedBug:
    """A faulty kernel and its twin; `line` is where it must be reported as `kind`, `other_line` the other party's."""

    name: str
    task_folder: Path
    kind: str
    why: str
    faulty: Kernel
    clean: Kernel
    line: int
    other_line: int | None


def planted_bugs(corpus: Path = CORPUS) -> tuple[PlantedBug, ...]:
    """Every planted bug of a corpus, by name."""
    return tuple(_read(file) for file in sorted(_files(corpus), key=lambda file: file.stem))


def _files(corpus: Path) -> Iterator[Path]:
    for task in sorted(corpus.glob("*/task.toml")):
        for file in task.parent.iterdir():
            if file.suffix in (".cu", ".py") and file.stem not in ("kernel", "reference"):
                yield file


def _read(file: Path) -> PlantedBug:
    language = Language.TRITON if file.suffix == Language.TRITON.suffix else Language.CUDA
    text = file.read_text(encoding="utf-8")
    told = _KIND.search(text)
    if told is None:
        raise ValueError(f"{file} doesn't say which bug is planted in it.")
    marks = [_words(line) for line in text.splitlines()]
    found = [number for number, words in enumerate(marks, 1) if "found" in words]
    other = [number for number, words in enumerate(marks, 1) if "other" in words]
    return PlantedBug(
        name=file.stem,
        task_folder=file.parent,
        kind=told["kind"],
        why=told["why"],
        faulty=Kernel(_without("clean", text), language),
        clean=Kernel(_without("bug", text), language),
        line=found[0],
        other_line=other[0] if other else None,
    )


def _words(line: str) -> tuple[str, ...]:
    mark = _MARK.search(line)
    return tuple(mark["words"].split()) if mark else ()


def _without(word: str, text: str) -> str:
    """The text with the lines of a word emptied and no marks."""
    return "\n".join("" if word in _words(line) else _MARK.sub("", line) for line in text.splitlines()) + "\n"
