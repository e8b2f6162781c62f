"""`mctskernel record TASK`: kernels with their times, to test a model of a GPU on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from mctskernel.cli import options
from mctskernel.cli.errors import INTERRUPTED
from mctskernel.cli.following import workers_on
from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.profiling.devices import default_kind
from mctskernel.record import Wanted, record_run
from mctskernel.record import record as record_kernels
from mctskernel.report.view import load_view
from mctskernel.tasks import find_task
from mctskernel.tunables import Space, default_space
from mctskernel.variants import Variant


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
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Kernels with a time, at the most.",
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
    "--out", type=click.Path(path_type=Path), required=True, help="The folder; goes on with one begun before."
)
def record(
    task: str | None,
    language: str,
    kernel_file: Path | None,
    tunables: tuple[str, ...],
    limit: int,
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

    Every kernel is built, verified, timed and counted as in a search; what fails is written down with its outcome.
    Each line is on disk as soon as it is known: the same command goes on where Ctrl-C or a crash cut it off.

        mctskernel record softmax --language triton --tunable num_warps=1,2,4,8 --out families/softmax

        mctskernel record --from-run runs/softmax-20260101-120000 --out families/softmax
    """
    command = shlex.join(["mctskernel", "record", *sys.argv[2:]])
    if from_run is not None and task is None:
        count = record_run(load_view(from_run), out, limit, command=command)
        click.echo(f"Recorded {count} kernels of {from_run} in {out}")
        return
    if task is None or from_run is not None:
        raise click.UsageError("Give a TASK, or --from-run with a recorded run.")
    folder, chosen = find_task(task), Language(language)
    loaded = load_task(folder, chosen)
    kernel = (
        Kernel(kernel_file.read_text(encoding="utf-8"), chosen) if kernel_file else loaded.starting_kernel
    )
    wanted = Wanted(
        kernel,
        _space(kernel, tunables),
        limit,
        edits=edits,
        seed=seed,
        seconds=seconds or float("inf"),
        family=family,
    )
    kind = default_kind() if device == "auto" else device
    spec = DeviceSpec(kind, folder, architecture=architecture, seed=seed, language=chosen)
    try:
        with (
            open_executor(spec, workers or workers_on(kind, chosen)) as executor,
            _progress(limit + edits) as follow,
        ):
            record_kernels(loaded, wanted, out, executor, command=command, follow=follow)
    except KeyboardInterrupt:
        click.echo(f"mctskernel: interrupted; the same command goes on with {out}", err=True)
        sys.exit(INTERRUPTED)
    click.echo(f"Recorded in {out}")


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
def _progress(total: int) -> Iterator[Callable[[Variant], None]]:
    """A bar on standard error: kernels with a time, and the last line that was written."""
    console = Console(stderr=True)
    columns = ("{task.description}", MofNCompleteColumn(), TimeElapsedColumn(), "{task.fields[last]}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("Recording", total=total, last="")

        def follow(variant: Variant) -> None:
            ok = variant.outcome is Outcome.OK
            last = f"{variant.name}: {variant.us:.1f} us" if ok else f"{variant.name}: {variant.outcome}"
            progress.update(bar, advance=int(ok), last=last)

        yield follow
