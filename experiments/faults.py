"""Faults at random moments of searches, and whether anything was lost: from a checkout, on Linux.

    python -m mctskernel.experiments.faults --faults 500 --seed 1 --out docs/results/faults.json

A search runs in a process of its own and meets one fault after another: it or one of its processes is killed or
stopped, its disk fills up, its compiler, its GPU or its model's server fails, its files are damaged. After each it is
gone on with. Whatever was finished before a fault must be in the journal afterwards, as it was; and nothing may stand
still for 30 seconds.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mctskernel.experiments.fault_injection.kinds import KINDS, LIMIT_SECONDS, Kind
from mctskernel.experiments.fault_injection.subjects import (
    SCRIPTS,
    ModelServer,
    Starter,
    Subject,
    fake_gpu,
    modelled,
    plain_place,
    recorded,
    small_disk,
    small_disks_work,
    walk,
    with_model,
)
from mctskernel.experiments.fault_injection.trials import Injected, Trial
from mctskernel.experiments.records.provenance import write_result

FAULTS_A_RUN = 10
"""How many faults one run meets."""

ROUNDS = 4
"""How often faults are drawn again in place of those that met nothing: a search that had ended just then."""

WEIGHTS = {"landscape": 1.0, "recorded": 0.3, "model": 0.2, "gpu": 0.2, "llm": 0.1}
"""How often a fault meets each search: what starts fast meets many."""


@click.command()
@click.option(
    "--faults", type=click.IntRange(min=1), default=500, show_default=True, help="How many to inject."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the kinds and their moments.")
@click.option("--at-once", type=click.IntRange(min=1), default=3, show_default=True, help="Runs at a time.")
@click.option("--only", multiple=True, help="Kinds or searches to take, by a part of their names.")
@click.option("--minutes", type=float, help="No run begins after so many.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the result goes, as JSON.")
def main(
    *, faults: int, seed: int, at_once: int, only: tuple[str, ...], minutes: float | None, out: Path | None
) -> None:
    """Inject faults into searches and count what is lost."""
    began, console, lock = time.monotonic(), Console(soft_wrap=True), threading.Lock()
    found: list[Injected] = []
    heard: list[Injected] = []
    starter = Starter()

    def hear(row: Injected) -> None:
        with lock:
            heard.append(row)
            words = f"{row.subject}: {row.kind}: {row.ending}, {row.pause_seconds} s {row.problem}"
            console.print(f"{time.monotonic() - began:5.0f} s  {len(heard):4d}  {words}", markup=False)

    def batch(folder: Path, number: int, subject: str, kinds: Sequence[Kind]) -> list[Injected]:
        if minutes and time.monotonic() - began > 60 * minutes:
            return []
        random = np.random.default_rng((seed, number))
        return inject(folder / str(number), subject, kinds, random, starter=starter, heard=hear)

    with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor(at_once) as pool:
        for again in range(ROUNDS):
            missing = faults - sum(row.began for row in found)
            planned = plan(missing, np.random.default_rng((seed, again)), only) if missing > 0 else []
            for done in [
                pool.submit(batch, Path(name), 1000 * again + number, *each)
                for number, each in enumerate(planned)
            ]:
                found += done.result()
    starter.close()
    for row in found:
        if row.lost or row.problem or row.hung or row.resumed is False:
            console.print(f"  {row}", style="red", markup=False)
    console.print(table(found))
    if out is not None:
        write_result(out, summary(found, seed, time.monotonic() - began))
    sys.exit(any(row.lost or row.hung or row.problem for row in found))


def plan(faults: int, random: np.random.Generator, only: Sequence[str] = ()) -> list[tuple[str, list[Kind]]]:
    """Runs that come to so many faults: the search of each, and the kinds that it meets in their order.

    Kinds are drawn by their shares, every one at least once where there are faults enough.
    """
    pairs = [
        (subject, kind)
        for kind in KINDS
        for subject in kind.subjects
        if (not only or any(part in text for part in only for text in (kind.name, subject)))
        and (kind.place == "plain" or small_disks_work())
    ]
    shares = np.array([kind.share * WEIGHTS[subject] for subject, kind in pairs])
    drawn = random.choice(len(pairs), max(0, faults - len(pairs)), p=shares / shares.sum())
    chosen = [*random.permutation(len(pairs)), *drawn][:faults]
    grouped: dict[tuple[str, str], list[Kind]] = defaultdict(list)
    for index in chosen:
        subject, kind = pairs[int(index)]
        grouped[subject, kind.place].append(kind)
    runs = [
        (subject, kinds[first : first + FAULTS_A_RUN])
        for (subject, _), kinds in grouped.items()
        for first in range(0, len(kinds), FAULTS_A_RUN)
    ]
    return [runs[int(index)] for index in random.permutation(len(runs))]


def inject(
    folder: Path,
    subject: str,
    kinds: Sequence[Kind],
    random: np.random.Generator,
    *,
    starter: Starter,
    heard: Callable[[Injected], None] = lambda _: None,
) -> list[Injected]:
    """Let one run of a search meet faults, in a folder for it alone."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        small = kinds[0].place == "small"
        place = stack.enter_context((small_disk if small else plain_place)(folder / "runs"))
        server = ModelServer()
        if subject == "llm":
            server.start()
            stack.callback(server.stop)
        if small:
            starter = Starter(place.enter)
            stack.callback(starter.close)
        made = subject_named(subject, folder, server.url)
        trial = Trial(made, place, starter, random, server=server)
        return trial.faults(kinds, heard)


def subject_named(name: str, folder: Path, url: str = "") -> Subject:
    """One of the searches, with what it needs in a folder."""
    task = SCRIPTS / "task"
    makers: dict[str, Callable[[], Subject]] = {
        "landscape": walk,
        "recorded": lambda: recorded(folder),
        "model": lambda: modelled(task),
        "gpu": lambda: fake_gpu(task, folder / "gpu"),
        "llm": lambda: with_model(task, url),
    }
    made = makers[name]()
    made.variables["CLOCK_JUMP"] = str(folder / "clock")
    return made


def table(rows: Sequence[Injected]) -> Table:
    """What became of the faults, by kind."""
    shown = Table(title=f"{len(rows)} faults")
    for column in ("fault", "injected", "resumed", "evaluations lost", "wrong", "longest pause, s"):
        shown.add_column(column, justify="left" if column == "fault" else "right")
    for line in by_kind(rows):
        shown.add_row(*map(str, line.values()))
    return shown


def by_kind(rows: Sequence[Injected]) -> list[dict[str, object]]:
    """The table as data, its last line the sum."""
    kinds: dict[str, list[Injected]] = {kind.name: [] for kind in KINDS}
    for row in rows:
        kinds[row.kind].append(row)
    return [
        {
            "fault": name,
            "injected": sum(row.began for row in found),
            "resumed": sum(row.resumed is True for row in found),
            "lost": sum(row.lost for row in found),
            "wrong": sum(bool(row.problem) for row in found),
            "longest_pause_seconds": max((row.pause_seconds for row in found), default=0.0),
        }
        for name, found in [*kinds.items(), ("all", list(rows))]
        if found
    ]


def summary(rows: Sequence[Injected], seed: int, seconds: float) -> dict[str, object]:
    """The result as JSON."""
    return {
        "command": f"python -m mctskernel.experiments.faults --faults {len(rows)} --seed {seed}",
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "seconds": round(seconds),
        "injected": sum(row.began for row in rows),
        "evaluations_lost": sum(row.lost for row in rows),
        "hangs": sum(row.hung for row in rows),
        "hang_limit_seconds": LIMIT_SECONDS,
        "kinds": by_kind(rows),
        "problems": [
            {"kind": row.kind, "search": row.subject, "ending": row.ending, "problem": row.problem[:500]}
            for row in rows
            if row.problem
        ],
    }


if __name__ == "__main__":
    main()
