"""Record a search-space cache of a task: combinations of its tunables, from the folder of kernels beside the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean

from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.core.space import Configuration, Entry, Parameter, SearchSpace, SpaceError
from mctskernel.core.task import Task
from mctskernel.experiments.kernel_folders import Wanted, record
from mctskernel.experiments.variants import Variant, read_variants
from mctskernel.profiling.spaces import CLOSING, STAGES, entry_line, header_lines, read_space, space_name
from mctskernel.run import RunError, write_text

STAGES_OF = {"build": "compile", "verify": "verification", "time": "benchmark"}
"""Kernel Tuner's stages by ours; everything else is its framework's."""

FRAMEWORK = "framework"


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
    if not wanted.space:
        raise SpaceError(
            f"{task.name} has nothing that could be varied: no macro, constant or option with a number."
        )
    fingerprint = executor.fingerprint()
    modelled = " (modelled)" if fingerprint.get("device") == "model" else ""
    parameters = tuple(Parameter(name, tuple(values)) for name, values in wanted.space.items())
    gpu = f"{fingerprint.get('gpu', 'unknown GPU')}{modelled}"
    empty = SearchSpace(space_name(out), parameters, (), gpu, task.name)
    if out.exists():
        _refuse_another(read_space(out), empty, out)
    folder = out.with_suffix("")
    record(task, wanted, folder, executor, command=command, follow=follow)
    lines: dict[Configuration, list[Variant]] = {}
    for variant in read_variants(folder):
        values = tuple(variant.tunables[name] for name in wanted.space)
        if all(value in known for value, known in zip(values, wanted.space.values(), strict=True)):
            lines.setdefault(values, []).append(variant)
    if not lines:
        raise SpaceError(f"No combination of the tunables of {task.name} can be launched: {out} is not made.")
    entries = ",".join(entry_line(empty.names, _entry(values, found)) for values, found in lines.items())
    write_text(out, header_lines(empty, {"fingerprint": fingerprint}) + entries + CLOSING)
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
