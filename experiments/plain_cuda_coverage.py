"""Count the KernelBench problems that get a plain CUDA C++ kernel, and the kernels that are correct when emulated.

    python -m mctskernel.experiments.plain_cuda_coverage FOLDER [--every N] [--only TEXT] [--out FILE]

FOLDER holds files such as level1/19_ReLU.py. Each is read as `mctskernel search` does, and its kernel is verified on
the emulator at the smallest verify shape. The file gets a line of JSON for each problem.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import msgspec

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Language
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.problems.problem import Problem
from mctskernel.problems.registry import read_problem
from mctskernel.profiling.candidate import RefusedError, prepare
from mctskernel.profiling.emulation import emulable, emulate
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_cases

ARCHITECTURE = "sm_90"


@dataclass(frozen=True)
class Found:
    """The result of a problem. `reason` says why it has no kernel, or why that is wrong."""

    level: str
    name: str
    has_kernel: bool = False
    is_right: bool = False
    launches: int = 0
    seconds: float = 0.0
    reason: str = ""


def covered(file: Path) -> Found:
    """Read a problem, and verify its starting kernel if there is one."""
    level, name, start = file.parent.name, file.stem, time.perf_counter()
    try:
        problem = read_problem(file, Language.CUDA)
    except TaskError as error:
        return Found(level, name, seconds=_since(start), reason=str(error))
    if "kernel.cu" not in problem.files:
        return Found(level, name, seconds=_since(start), reason=" ".join(problem.notes[-1:]))
    launches = problem.files["kernel.cu"].decode().count("[[launch]]")
    reason = _difference(problem)
    return Found(
        level,
        name,
        has_kernel=True,
        is_right=not reason,
        launches=launches,
        seconds=_since(start),
        reason=reason,
    )


def table(found: Sequence[Found]) -> str:
    """A Markdown table by level, and the problems without a kernel or with a wrong one."""
    lines = ["| level | problems | with a kernel | right when emulated |", "|---|---|---|---|"]
    for level in sorted({each.level for each in found}):
        of_level = [each for each in found if each.level == level]
        counts = (len(of_level), sum(e.has_kernel for e in of_level), sum(e.is_right for e in of_level))
        lines.append(f"| {level} | {' | '.join(map(str, counts))} |")
    lines += ["", *(f"- {e.level}/{e.name}: {e.reason}" for e in found if not e.is_right)]
    return "\n".join(lines)


def _difference(problem: Problem) -> str:
    """The error of the starting kernel, or an empty text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in problem.files.items():
            (folder / file).write_bytes(content)
        try:
            task = load_task(folder, Language.CUDA)
            stages = Stages()
            prepared = emulable(task, prepare(task, task.starting_kernel, ARCHITECTURE, stages), stages)
            smallest = min(task.verify_shapes, key=task.compulsory_bytes)
            judged = emulate(task, prepared.candidate, prepared.modules, draw_cases(task, (smallest,), 0))
        except TaskError as error:
            return str(error)
        except RefusedError as refusal:
            return refusal.message
    return "" if judged.outcome is Outcome.OK else f"{judged.outcome}: {judged.message}"


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


def _problems(folder: Path, only: str) -> Iterator[Path]:
    for file in sorted(folder.glob("*/*.py"), key=_number):
        if only in f"{file.parent.name}/{file.name}":
            yield file


def _number(file: Path) -> tuple[str, int, str]:
    digits = file.name.partition("_")[0]
    return file.parent.name, int(digits) if digits.isdigit() else 0, file.name


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--every", default=1, help="Take every N-th problem.")
@click.option("--only", default="", help="Take problems with this text in their path.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="A line of JSON for each problem."
)
def main(folder: Path, every: int, only: str, out: Path | None) -> None:
    """Print how many problems of FOLDER get a plain kernel, by level."""
    found = []
    for file in list(_problems(folder, only))[every - 1 :: every]:
        found.append(covered(file))
        last = found[-1]
        click.echo(f"{last.level}/{last.name}: {last.reason or 'right'} ({last.seconds} s)", err=True)
        if out is not None:
            with out.open("ab") as lines:
                lines.write(msgspec.json.encode(asdict(last)) + b"\n")
    click.echo(table(found))


if __name__ == "__main__":
    main()
