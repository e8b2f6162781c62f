"""How far a folder of benchmark problems gets: reading, starting kernel, validation, search.

    python -m mctskernel.experiments.coverage FOLDER --device model --language cuda --budget 1 --jobs 2 --out OUT
    python -m mctskernel.experiments.coverage FOLDER --device gpu --budget 3 --jobs 3 --out OUT
    python -m mctskernel.experiments.coverage FOLDER --device gpu --seconds 12 --out OUT

A budget of one evaluation a start verifies, times and validates starts only. Each problem has a process of its own,
which does what `mctskernel search FILE` does, and leaves OUT/NAME with its task, its run, what it printed, and its row.
The same command continues where it was interrupted; removing a folder repeats its problem. OUT/coverage.md holds the
table of all rows.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec

from mctskernel.config import SearchConfig, for_task, read_config
from mctskernel.core.disk import write_whole
from mctskernel.core.documents import excerpt
from mctskernel.core.kernel import Language
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import UserError
from mctskernel.experiments.results import page, table
from mctskernel.problems.registry import is_problem, read_problem, write_problem
from mctskernel.run.search import begin
from mctskernel.tasks.starts import start_name
from mctskernel.tree.node import Tree

ROW_FILE = "row.json"
_LANGUAGES = (Language.CUDA, Language.TRITON)


class Start(msgspec.Struct, frozen=True):
    """A starting kernel: what became of its evaluation, in a sentence, and its time where it is right."""

    language: Language
    found: str
    seconds: float = 0.0


class Row(msgspec.Struct, frozen=True):
    """What became of a problem; `reason` says in a sentence why it didn't get further, and is empty for a valid best.

    `read_seconds` are counted from PyTorch's import on, `search_seconds` with the final validation, `wall_seconds` from
    the start of the process; the latter is 0 while the process runs. Bytes are the largest resident memory of the
    reading process, and of any process of the search.
    """

    problem: str
    read_seconds: float = 0.0
    read_bytes: int = 0
    search_bytes: int = 0
    has_start: bool = False
    starts: tuple[Start, ...] = ()
    is_valid: bool = False
    evaluations: int = 0
    search_seconds: float = 0.0
    wall_seconds: float = 0.0
    speedup: float = 0.0
    reason: str = ""
    notes: tuple[str, ...] = ()


@click.command()
@click.argument("path", metavar="FOLDER|FILE", type=click.Path(path_type=Path, exists=True))
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="The GPU of --device model.")
@click.option(
    "--language", type=click.Choice(["cuda", "triton"]), help="Starts in one language.  [default: all]"
)
@click.option("--budget", type=click.IntRange(min=1), default=200, show_default=True, help="Evaluations.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds a search, at most.")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="As of `mctskernel search`.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Problems at a time.")
@click.option("--limit", type=float, default=600.0, show_default=True, help="Seconds a problem, at most.")
@click.option("--minutes", type=float, help="Begin no problem later; the next call continues.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A folder.")
def main(
    *,
    path: Path,
    device: str,
    architecture: str,
    language: str | None,
    budget: int,
    seconds: float | None,
    workers: int,
    seed: int,
    jobs: int,
    limit: float,
    minutes: float | None,
    out: Path,
) -> None:
    """Read, start and search every problem of a FOLDER, and print the table; or one FILE, in this process."""
    chosen = {"device": device, "architecture": architecture, "seed": seed}
    chosen |= {"language": language} if language else {}
    budgets = {"evaluations": budget, **({"seconds": seconds} if seconds else {})}
    if path.is_file():
        cover(path, read_config({**chosen, "workers": workers, "budget": budgets}), out)
        return
    given = {**chosen, "workers": workers, "budget": budget, **({"seconds": seconds} if seconds else {})}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    problems = [each for each in sorted(path.rglob("*.py")) if is_problem(each)]
    folders = [out / f"{each.parent.name}-{each.stem}" for each in problems]
    end = time.monotonic() + 60 * minutes if minutes else float("inf")

    def run(problem: Path, folder: Path) -> None:
        if not _is_covered(folder) and time.monotonic() < end:
            folder.mkdir(parents=True, exist_ok=True)
            _write(Row(_name(problem)), folder)
            row = _cover_in_a_process(problem, folder, options, limit)
            click.echo(
                f"{row.problem}: {row.reason or f'valid, {row.speedup:.2f}x'} ({row.wall_seconds:.1f} s)"
            )

    pool = ThreadPoolExecutor(jobs)
    try:
        list(pool.map(run, problems, folders))
    finally:
        pool.shutdown(cancel_futures=True)
    text = document([_read(each) for each in folders if _is_covered(each)], len(problems), " ".join(options))
    (out / "coverage.md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


def cover(problem: Path, config: SearchConfig, out: Path) -> Row:
    """Read a problem and search it, and write its row into `out`, first when it is read and again at the end."""
    began = time.monotonic()
    import torch  # noqa: F401, PLC0415 - its import isn't part of reading

    out.mkdir(parents=True, exist_ok=True)
    row = Row(_name(problem))
    imported = time.monotonic()
    try:
        found = read_problem(problem, config.language)
        reason = "" if found.has_kernel else found.notes[-1]
        row = msgspec.structs.replace(row, has_start=found.has_kernel, notes=found.notes, reason=reason)
    except UserError as error:
        row = msgspec.structs.replace(row, reason=excerpt(error))
    spent = time.monotonic() - imported
    row = msgspec.structs.replace(row, read_seconds=spent, read_bytes=_peak_bytes())
    _write(row, out)
    if row.has_start:
        shutil.rmtree(out / "task", ignore_errors=True)
        write_problem(found, out / "task")
        row = _searched(row, config, out)
    row = msgspec.structs.replace(row, wall_seconds=time.monotonic() - began)
    _write(row, out)
    return row


def _searched(row: Row, config: SearchConfig, out: Path) -> Row:
    began = time.monotonic()
    try:
        task = load_task(out / "task", config.language)
        found = begin(out / "run", out / "task", for_task(config, task), lambda _: None, lambda: False)
    except UserError as error:
        return msgspec.structs.replace(row, reason=excerpt(error))
    refused = found.answer.refused[-1][1] if found.answer.refused else "Nothing was validated."
    is_valid = found.answer.node is not None and found.answer.validated
    return msgspec.structs.replace(
        row,
        is_valid=is_valid,
        reason="" if is_valid else found.problem or refused,
        evaluations=found.tree.evaluations,
        starts=tuple(_start(found.tree, node) for node in _starts(found.tree)),
        search_seconds=time.monotonic() - began,
        search_bytes=_peak_bytes(),
        speedup=found.answer.speedup,
    )


def _starts(tree: Tree) -> list[int]:
    """The nodes of the starting kernels."""
    return [0, *(each for each in tree.nodes[0].children if start_name(tree, each))] if tree.nodes else []


def _start(tree: Tree, node: int) -> Start:
    language, evaluation = tree.nodes[node].kernel.language, tree.nodes[node].evaluation
    if evaluation is None:
        return Start(language, "not evaluated")
    if not evaluation.ok:
        return Start(language, f"{evaluation.outcome}: {evaluation.message}")
    return Start(language, "ok", sum(timing.seconds for timing in evaluation.timings))


def document(rows: Sequence[Row], problems: int, options: str) -> str:
    """Make the page of the table, the means, and the reasons of failures."""
    columns = [
        "problem",
        "read, s",
        "reading, GB",
        "searching, GB",
        *(f"{each}, ms" for each in _LANGUAGES),
        "valid",
    ]
    columns += ["evaluations", "a second", "wall, s", "speed-up"]
    right = (
        f"{sum(_found(row, language) == 'ok' for row in rows)} right in {language}" for language in _LANGUAGES
    )
    counts = (
        f"{options}: {len(rows)} of {problems} problems covered, {sum(row.has_start for row in rows)} with a starting "
        f"kernel, {', '.join(right)}, {sum(row.is_valid for row in rows)} with a best kernel that passed the final "
        "validation."
    )
    searched = [row for row in rows if row.search_seconds]
    medians = ""
    if searched:
        rate, wall = (
            statistics.median(values)
            for values in (map(_rate, searched), [row.wall_seconds for row in searched])
        )
        medians = f"Medians: {rate:.2f} evaluations a second, {wall:.1f} s wall time a problem."
    slowest = max(rows, key=lambda row: row.read_seconds, default=None)
    largest = max(rows, key=lambda row: row.read_bytes, default=None)
    worst = ""
    if slowest and largest:
        worst = f"Reading takes at most {slowest.read_seconds:.1f} s ({slowest.problem}) "
        worst += f"and {largest.read_bytes / 1e9:.2f} GB ({largest.problem})."
    failed = "\n".join(f"- {row.problem}: {reason}" for row in rows for reason in _reasons(row))
    blocks = [counts, medians, worst, table(columns, [_cells(row) for row in rows])]
    return page("Coverage", *filter(None, blocks), *(["## What failed", failed] if failed else []))


def _cells(row: Row) -> list[str]:
    return [
        row.problem,
        f"{row.read_seconds:.1f}",
        f"{row.read_bytes / 1e9:.2f}",
        f"{row.search_bytes / 1e9:.2f}" if row.search_bytes else "",
        *(_time(row, language) for language in _LANGUAGES),
        "yes" if row.is_valid else "no",
        str(row.evaluations),
        f"{_rate(row):.2f}" if row.search_seconds else "",
        f"{row.wall_seconds:.1f}",
        f"{row.speedup:.2f}x" if row.is_valid else "",
    ]


def _found(row: Row, language: Language) -> str:
    """What became of the start in a language; "ok" if one of several is right, empty without one."""
    found = [each.found for each in row.starts if each.language == language]
    return "ok" if "ok" in found else "; ".join(found)


def _time(row: Row, language: Language) -> str:
    """The milliseconds of the fastest start in a language."""
    found = [each.seconds for each in row.starts if each.language == language and each.found == "ok"]
    return f"{1e3 * min(found):.4g}" if found else "wrong" if _found(row, language) else ""


def _reasons(row: Row) -> list[str]:
    """Why there is no valid best, and why starts failed."""
    starts = [f"{each.language} start: {each.found}" for each in row.starts if each.found != "ok"]
    return [*([row.reason] if row.reason else []), *starts]


def _rate(row: Row) -> float:
    return row.evaluations / row.search_seconds


def _cover_in_a_process(problem: Path, folder: Path, options: Sequence[str], limit: float) -> Row:
    """Cover a problem in a process of its own; if it ends otherwise, its row says how."""
    command = [sys.executable, "-m", "mctskernel.experiments.coverage", str(problem), *options]
    shutil.rmtree(folder / "run", ignore_errors=True)
    began = time.monotonic()
    with (folder / "printed.txt").open("wb") as printed:
        child = subprocess.Popen([*command, "--out", str(folder)], stdout=printed, stderr=subprocess.STDOUT)
        try:
            ended = f"Its process ended with status {child.wait(limit)}: see {printed.name}."
        except subprocess.TimeoutExpired:
            ended = f"It took more than {limit:g} s."
        finally:
            child.kill()
            child.wait()
    row = _read(folder)
    if not _is_covered(folder):
        row = msgspec.structs.replace(row, wall_seconds=time.monotonic() - began, reason=ended)
        _write(row, folder)
    return row


def _name(problem: Path) -> str:
    return f"{problem.parent.name}/{problem.stem}"


def _is_covered(folder: Path) -> bool:
    return (folder / ROW_FILE).is_file() and _read(folder).wall_seconds > 0


def _read(folder: Path) -> Row:
    return msgspec.json.decode((folder / ROW_FILE).read_bytes(), type=Row)


def _write(row: Row, folder: Path) -> None:
    write_whole(folder / ROW_FILE, msgspec.json.encode(row))


def _peak_bytes() -> int:
    """The largest resident memory that this process or one of its ended children has had."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return 1024 * max(resource.getrusage(each).ru_maxrss for each in who)


if __name__ == "__main__":
    main()
