"""Make folders of kernels whose times are known, from a kernel's tunables."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.kernel import Kernel
from mctskernel.core.task import Task
from mctskernel.edits.rule import Limits
from mctskernel.experiments.tunables import Space, combinations, with_tunables
from mctskernel.experiments.variants import LINES, TASK, Variant, read_variants, source_path, variants_of
from mctskernel.run import RunError, write_text

ATTEMPTS = 20
"""How many values of the tunables are looked at for each kernel that is wanted; most that can't run cost nothing."""

ORIGIN = "record.json"


@dataclass(frozen=True)
class Wanted:
    """What to record of a task: `limit` kernels with a time from a space of tunables.

    No evaluation is started after `seconds`. An empty `family` means the task in its language.
    """

    kernel: Kernel
    space: Space
    limit: int
    seed: int = 0
    seconds: float = math.inf
    family: str = ""


def record(
    task: Task,
    wanted: Wanted,
    out: Path,
    executor: Executor,
    *,
    command: str = "",
    follow: Callable[[Variant], None] = lambda _: None,
) -> None:
    """Evaluate kernels of a task and write each down as soon as its result is known; continue an earlier recording.

    Raises RunError for a folder of another task or device, and TunableError for a tunable that isn't there.
    """
    ends = time.monotonic() + wanted.seconds
    _open(out, task, Origin(task.name, command, executor.fingerprint()))
    source = source_path(wanted.kernel)
    known = {
        with_tunables(wanted.kernel, each.tunables).identity: each.outcome is Outcome.OK
        for each in (read_variants(out) if (out / LINES).exists() else ())
        if each.source == source
    }
    timed = sum(known.values())
    (out / source).parent.mkdir(exist_ok=True)
    (out / source).write_text(wanted.kernel.source, encoding="utf-8")
    limits = Limits(task, task.search_shapes)
    tries = enumerate(combinations(wanted.kernel, wanted.space, ATTEMPTS * wanted.limit, wanted.seed))
    in_flight: dict[int, dict[str, int]] = {}
    while True:
        while (
            len(in_flight) < executor.capacity
            and time.monotonic() < ends
            and timed + len(in_flight) < wanted.limit
        ):
            ticket, values = next(tries, (-1, {}))
            if ticket < 0:
                break
            kernel = with_tunables(wanted.kernel, values)
            if limits.allow(kernel) and kernel.identity not in known:
                in_flight[ticket] = values
                executor.submit(ticket, kernel)
        if not in_flight:
            return
        for ticket, evaluation in executor.wait():
            lines = variants_of(task, wanted.kernel, evaluation, in_flight.pop(ticket), wanted.family)
            with (out / LINES).open("ab") as file:
                file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
            timed += lines[0].outcome is Outcome.OK
            follow(lines[0])


class Origin(msgspec.Struct, frozen=True):
    """record.json: where the times of a folder come from. `device` is a fingerprint."""

    task: str
    command: str
    device: dict[str, str]


def _open(folder: Path, task: Task, origin: Origin) -> None:
    path = folder / ORIGIN
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=Origin)
        if (before.task, before.device) != (origin.task, origin.device):
            raise RunError(
                f"{folder} holds kernels of {before.task} on {before.device.get('gpu')} "
                f"({before.device.get('device')}); times of another task or device need another folder."
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} already holds something that was not recorded: choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(task.folder, folder / TASK, ignore=unwanted, dirs_exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(origin), indent=2).decode() + "\n")
