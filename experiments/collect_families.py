"""Families of kernels with their times on this machine's GPU, for the model's benchmark.

    python -m mctskernel.experiments.collect_families --out FOLDER [--minutes 12] [--limit 50] [--families gemv,scan]

Each family is one kernel of `families/` with other tunables. The folders are those of `experiments.record`, and so is
what happens when the same command is started again: it goes on. Families share the minutes evenly.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import msgspec

from mctskernel.core.device import DeviceSpec
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task_file import load_task
from mctskernel.executors import open_executor
from mctskernel.experiments.kernel_folders import Wanted, record
from mctskernel.experiments.record import print_variant
from mctskernel.tasks.builtin import find_task

KERNELS = Path(__file__).parent / "families"


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel of a built-in task, or of a task beside it where `task` is empty, and what to try of its tunables."""

    kernel: str
    space: dict[str, tuple[int, ...]]
    task: str = ""

    @property
    def file(self) -> Path:
        """Where the kernel is."""
        return KERNELS / self.kernel

    @property
    def language(self) -> Language:
        """The language of the kernel."""
        return Language.TRITON if self.file.suffix == Language.TRITON.suffix else Language.CUDA

    @property
    def task_folder(self) -> Path:
        """The task that evaluates the kernel."""
        return find_task(self.task or self.file.parent)


FAMILIES = msgspec.toml.decode((KERNELS / "families.toml").read_bytes(), type=dict[str, Family])


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="A folder for each family goes here."
)
@click.option("--families", default=",".join(FAMILIES), show_default=True, help="With commas.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Kernels of each.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=12.0,
    show_default=True,
    help="For all of them.",
)
@click.option("--device", type=click.Choice(["gpu", "model"]), default="gpu", show_default=True)
@click.option("--architecture", default="H100", show_default=True, help="What --device model stands for.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="As of `experiments.record`.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    *,
    out: Path,
    families: str,
    limit: int,
    minutes: float,
    device: str,
    architecture: str,
    workers: int,
    seed: int,
) -> None:
    """Record the families one after another."""
    names = families.split(",")
    if unknown := [name for name in names if name not in FAMILIES]:
        raise click.UsageError(f"There is no family '{unknown[0]}' (known: {', '.join(FAMILIES)}).")
    ends = time.monotonic() + 60 * minutes
    command = f"python -m mctskernel.experiments.collect_families --families {families} --seed {seed}"
    for index, name in enumerate(names):
        family = FAMILIES[name]
        task = load_task(family.task_folder, family.language)
        kernel = Kernel(family.file.read_text(encoding="utf-8"), family.language)
        spec = DeviceSpec(
            device, family.task_folder, architecture=architecture, seed=seed, language=family.language
        )
        with open_executor(spec, workers) as executor:
            seconds = max(ends - time.monotonic(), 0.0) / (len(names) - index)
            click.echo(f"{name}: {seconds:.0f} s", err=True)
            wanted = Wanted(kernel, family.space, limit, seed=seed, seconds=seconds, family=name)
            record(task, wanted, out / name, executor, command=command, follow=print_variant)


if __name__ == "__main__":
    sys.exit(main())
