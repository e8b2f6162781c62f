"""Record kernels with their times, to test a model of a GPU on, or as a search space that can be searched again.

python -m mctskernel.experiments.record softmax --language triton --tunable num_warps=1,2,4,8 --out softmax
python -m mctskernel.experiments.record softmax --format kernel-tuner --tunable BLOCK=64,128 --out softmax.json
"""

from __future__ import annotations

import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import click

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import SOURCE_LANGUAGES, Kernel, Language
from mctskernel.core.space import Configuration, Entry, Parameter, SearchSpace, SpaceError
from mctskernel.core.task import Task
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import UserError
from mctskernel.executors import open_executor, workers_on
from mctskernel.experiments.kernel_folders import Wanted
from mctskernel.experiments.kernel_folders import record as record_kernels
from mctskernel.experiments.tunables import Space
from mctskernel.experiments.tunables import tunables as known_tunables
from mctskernel.experiments.variants import Variant, read_variants
from mctskernel.profiling.devices import default_kind
from mctskernel.profiling.quantities import time_text
from mctskernel.profiling.spaces import STAGES, read_space, space_name, write_space
from mctskernel.run import RunError
from mctskernel.tasks.builtin import find_task

VARIANTS = "variants"
SPACE = "kernel-tuner"

KERNELS = 50
"""How many kernels a folder gets by default."""

STAGES_OF = {"build": "compile", "verify": "verification", "time": "benchmark"}
"""Kernel Tuner's stages by ours; everything else is its framework's."""

FRAMEWORK = "framework"


@click.command()
@click.argument("task")
@click.option(
    "--language",
    type=click.Choice([each.value for each in SOURCE_LANGUAGES]),
    default=Language.CUDA.value,
    show_default=True,
    help="The language of the task's kernel.",
)
@click.option(
    "--kernel",
    "kernel_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Vary this kernel. [default: the task's starting kernel]",
)
@click.option(
    "--tunable",
    "tunables",
    multiple=True,
    metavar="NAME=V1,V2",
    help="Values of a macro, a Triton constant, num_warps or num_stages; again for more.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([VARIANTS, SPACE]),
    default=VARIANTS,
    show_default=True,
    help="A folder of kernels with sources and counters, or also a cache file for `mctskernel search --space`.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"At most so many kernels with a time. [default: {KERNELS}, or all for a cache file]",
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Begin nothing after so long.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--family", default="", help="What to call the kernels. [default: TASK_LANGUAGE]")
@click.option("--device", type=click.Choice(["auto", "gpu", "model"]), default="auto", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="What --device model stands for.")
@click.option("--workers", type=click.IntRange(min=1))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder or cache file.")
def main(
    *,
    task: str,
    language: str,
    kernel_file: Path | None,
    tunables: tuple[str, ...],
    form: str,
    limit: int | None,
    seconds: float | None,
    seed: int,
    family: str,
    device: str,
    architecture: str,
    workers: int | None,
    out: Path,
) -> None:
    """Record kernels of TASK with their verified times and counters.

    Each line is written as soon as it is known: the same command continues an interrupted recording.
    """
    command = shlex.join(["python", "-m", "mctskernel.experiments.record", *sys.argv[1:]])
    if form == SPACE and (family or out.suffix != ".json"):
        raise click.UsageError(f"--format {SPACE} needs --out FILE.json, and no --family.")
    most = KERNELS if limit is None else limit
    try:
        folder, chosen = find_task(task), Language(language)
        loaded = load_task(folder, chosen)
        kernel = loaded.starting_kernel
        if kernel_file is not None:
            kernel = Kernel(kernel_file.read_text(encoding="utf-8"), chosen)
        space, ends = _space(kernel, tunables), seconds or float("inf")
        kind = default_kind() if device == "auto" else device
        spec = DeviceSpec(kind, folder, architecture, seed, chosen)
        with open_executor(spec, workers or workers_on(kind, chosen)) as executor:
            if form == SPACE:
                wanted = Wanted(kernel, space, limit or math.prod(map(len, space.values())), seed, ends)
                made = record_space(loaded, wanted, out, executor, command=command, follow=print_variant)
                click.echo(_summary(made))
            else:
                wanted = Wanted(kernel, space, most, seed, ends, family)
                record_kernels(loaded, wanted, out, executor, command=command, follow=print_variant)
    except UserError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Recorded in {out}")


def record_space(
    task: Task,
    wanted: Wanted,
    out: Path,
    executor: Executor,
    *,
    command: str = "",
    follow: Callable[[Variant], None] = lambda _: None,
) -> SearchSpace:
    """Record kernels as `record` does, in a folder called like the file, and write them as a cache file.

    Combinations whose launch plan can't be launched are not of the space. Raises SpaceError for a file that can't be
    read, RunError for a file or folder of another task or device, and TunableError for a tunable that isn't there.
    """
    fingerprint = executor.fingerprint()
    modelled = " (modelled)" if fingerprint.get("device") == "model" else ""
    parameters = tuple(Parameter(name, tuple(values)) for name, values in wanted.space.items())
    gpu = f"{fingerprint.get('gpu', 'unknown GPU')}{modelled}"
    empty = SearchSpace(space_name(out), parameters, (), gpu, task.name)
    if out.exists():
        _refuse_another(read_space(out), empty, out)
    folder = out.with_suffix("")
    record_kernels(task, wanted, folder, executor, command=command, follow=follow)
    lines: dict[Configuration, list[Variant]] = {}
    for variant in read_variants(folder):
        values = tuple(variant.tunables[name] for name in wanted.space)
        if all(value in known for value, known in zip(values, wanted.space.values(), strict=True)):
            lines.setdefault(values, []).append(variant)
    if not lines:
        raise SpaceError(f"No combination of the tunables of {task.name} can be launched: {out} is not made.")
    entries = tuple(_entry(values, found) for values, found in lines.items())
    write_space(replace(empty, entries=entries), out)
    return read_space(out)


def _refuse_another(found: SearchSpace, space: SearchSpace, out: Path) -> None:
    if (found.names, found.device, found.kernel) != (space.names, space.device, space.kernel):
        raise RunError(
            f"{out} holds {', '.join(found.names)} of {found.kernel or 'another kernel'} on "
            f"{found.device or 'an unknown GPU'}; other parameters, tasks and devices need another --out."
        )


def _entry(values: Configuration, lines: Sequence[Variant]) -> Entry:
    """What a cache file holds of a kernel, by its lines: one for each search shape."""
    # Kernel Tuner wants all stages to replay a file.
    stages = dict.fromkeys(STAGES.values(), 0.0)
    for stage, seconds in lines[0].stage_seconds.items():
        stages[STAGES_OF.get(stage, FRAMEWORK)] += seconds
    times = [line.us * 1e-6 for line in lines if line.us is not None]
    if times:
        return Entry(values, Outcome.OK, geometric_mean(times), stage_seconds=stages)
    return Entry(values, lines[0].outcome, word=str(lines[0].outcome), stage_seconds=stages)


def _space(kernel: Kernel, texts: tuple[str, ...]) -> Space:
    """The values that the user names."""
    if not texts:
        known = ", ".join(f"{name}={value}" for name, value in known_tunables(kernel).items()) or "none"
        raise click.UsageError(f"Name the values to try with --tunable NAME=V1,V2 (the kernel has {known}).")
    space = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            space[name] = tuple(int(value) for value in values.split(","))
        except ValueError as error:
            raise click.UsageError(f"--tunable {text!r} is not NAME=V1,V2 with whole numbers.") from error
    return space


def print_variant(variant: Variant) -> None:
    """Print a line about a kernel that was recorded."""
    ok = variant.outcome is Outcome.OK
    text = f"{variant.us:.1f} us" if ok else f"{variant.outcome}: {variant.message}"
    click.echo(f"  {variant.name}: {text.splitlines()[0][:150]}", err=True)


def _summary(space: SearchSpace) -> str:
    outcomes = Counter(str(entry.outcome) for entry in space.entries)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    best = f"; the fastest takes {time_text(space.optimum_seconds)}" if outcomes[Outcome.OK] else ""
    return f"{len(space.entries)} configurations: {counts}{best}"


if __name__ == "__main__":
    main()
