"""`mctskernel record TASK`: kernels with their times, to test a model of a GPU on, or a space to search again."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.plain_console import PlainConsole, echo
from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.space import Entry, SearchSpace
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.executors.room import workers_on
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.quantities import time_text
from mctskernel.record import Wanted as Kernels
from mctskernel.record import record as record_kernels
from mctskernel.record import record_run
from mctskernel.record_space import Wanted as Configurations
from mctskernel.record_space import record_space
from mctskernel.report.view import load_view
from mctskernel.tasks import find_task
from mctskernel.tunables import Space, default_space
from mctskernel.variants import Variant

VARIANTS = "variants"
SPACE = "kernel-tuner"

KERNELS = 50
"""How many kernels a folder gets where nobody says."""

Progressed = Callable[[str, int], None]
"""Takes what was just written down, in words, and by how much it brings the end nearer."""


@click.command()
@click.argument("task", required=False)
@click.option(
    "--language",
    type=click.Choice([language.value for language in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="The language of the kernel: kernel.cu or kernel.py of the task.",
)
@click.option(
    "--kernel",
    "kernel_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Vary this kernel of the task. [default: the task's starting kernel]",
)
@click.option(
    "--tunable",
    "tunables",
    multiple=True,
    metavar="NAME=V1,V2",
    help="Values to try of a macro, a Triton constant, num_warps or num_stages; may be given several times. "
    "[default: halves and doubles of every one]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([VARIANTS, SPACE]),
    default=VARIANTS,
    show_default=True,
    help="A folder of kernels with their sources and counters, or one cache file in Kernel Tuner's form for "
    "`mctskernel search --space`.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help="Kernels with a time, at the most; in a cache file configurations, those that failed included. "
    f"[default: {KERNELS}; in a cache file all]",
)
@click.option(
    "--edits",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Besides these, so many that random chains of the rules' edits make.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Begin nothing more after these."
)
@options.seed
@click.option("--family", default="", help="What to call the kernels. [default: TASK_LANGUAGE]")
@options.device
@options.architecture
@options.workers
@click.option(
    "--from-run",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take the kernels of this recorded run instead, spread over their times; nothing is measured.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder or cache file; goes on with one begun before.",
)
def record(
    task: str | None,
    language: str,
    kernel_file: Path | None,
    tunables: tuple[str, ...],
    form: str,
    limit: int | None,
    edits: int,
    seconds: float | None,
    seed: int,
    family: str,
    device: str,
    architecture: str,
    workers: int | None,
    from_run: Path | None,
    out: Path,
) -> None:
    """Record kernels of TASK with their times and counters in a folder that a model can be tested on.

    With --format kernel-tuner it records every combination of the values of TASK's tunables, or --limit of them, in a
    cache file that holds the search space of these parameters: the failures too, and what each evaluation took.

    Every kernel is built, verified, timed and counted as in a search; what fails is written down with its outcome.
    Each line is on disk as soon as it is known: the same command goes on where Ctrl-C or a crash cut it off.

        mctskernel record softmax --language triton --tunable num_warps=1,2,4,8 --out families/softmax

        mctskernel record softmax --format kernel-tuner --tunable BLOCK=64,128,256 --out softmax.json

        mctskernel record --from-run runs/softmax-20260101-120000 --out families/softmax
    """
    command = shlex.join(["mctskernel", "record", *sys.argv[2:]])
    if form == SPACE and (edits or family or from_run is not None or out.suffix != ".json"):
        raise click.UsageError(
            f"--format {SPACE} takes neither --edits nor --family nor --from-run, and --out is a file that ends in "
            ".json."
        )
    if from_run is not None and task is None:
        count = record_run(load_view(from_run), out, KERNELS if limit is None else limit, command=command)
        echo(f"Recorded {count} kernels of {from_run} in {out}")
        return
    if task is None or from_run is not None:
        raise click.UsageError("Give a TASK, or --from-run with a recorded run.")
    folder, chosen = find_task(task), Language(language)
    loaded = load_task(folder, chosen)
    kernel = (
        Kernel(kernel_file.read_text(encoding="utf-8"), chosen) if kernel_file else loaded.starting_kernel
    )
    space, ends = _space(kernel, tunables), seconds or float("inf")
    kind = default_kind() if device == "auto" else device
    spec = DeviceSpec(kind, folder, architecture=architecture, seed=seed, language=chosen)
    try:
        with open_executor(spec, workers or workers_on(kind, chosen)) as executor:
            if form == SPACE:
                configurations = Configurations(kernel, space, limit, seed, ends)
                with _progress(configurations.total) as progress:
                    found = record_space(loaded, configurations, out, executor, _entries_on(progress))
                echo(_summary(found))
            else:
                most = KERNELS if limit is None else limit
                kernels = Kernels(kernel, space, most, edits=edits, seed=seed, seconds=ends, family=family)
                with _progress(most + edits) as progress:
                    follow = _variants_on(progress)
                    record_kernels(loaded, kernels, out, executor, command=command, follow=follow)
    except KeyboardInterrupt:
        echo(f"mctskernel: interrupted; the same command goes on with {out}", err=True)
        sys.exit(INTERRUPTED)
    echo(f"Recorded in {out}")


def _space(kernel: Kernel, texts: tuple[str, ...]) -> Space:
    """The default space with what the user says instead."""
    space = dict(default_space(kernel))
    for text in texts:
        name, _, values = text.partition("=")
        try:
            space[name] = tuple(int(value) for value in values.split(","))
        except ValueError as error:
            raise click.UsageError(
                f"--tunable {text!r} is not NAME=V1,V2 with whole numbers, as in BLOCK=64,128."
            ) from error
    return space


@contextmanager
def _progress(total: int) -> Iterator[Progressed]:
    """A bar on standard error: how many of all there are, and the last that was written down."""
    console = PlainConsole(stderr=True)
    columns = ("{task.description}", MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[last]}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Recording", total=total, last="")
        yield lambda last, by: progress.update(bar, advance=by, last=last)


def _variants_on(progress: Progressed) -> Callable[[Variant], None]:
    def follow(variant: Variant) -> None:
        ok = variant.outcome is Outcome.OK
        progress(
            f"{variant.name}: {variant.us:.1f} us" if ok else f"{variant.name}: {variant.outcome}", int(ok)
        )

    return follow


def _entries_on(progress: Progressed) -> Callable[[str, Entry], None]:
    def follow(label: str, entry: Entry) -> None:
        progress(f"{label}: {time_text(entry.seconds) if entry.seconds else entry.outcome}", 1)

    return follow


def _summary(space: SearchSpace) -> str:
    outcomes = Counter(str(entry.outcome) for entry in space.entries)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    best = f"; the fastest takes {time_text(space.optimum_seconds)}" if outcomes[Outcome.OK] else ""
    return f"{len(space.entries)} configurations: {counts}{best}"
