"""What finds the planted bugs: the emulator, the tools of compute-sanitizer, and a comparison of values alone.

    python -m mctskernel.experiments.races --device model --out docs/results
    python -m mctskernel.experiments.races --device gpu --out docs/results

Writes `races_model` or `races_h100` and so on, as JSON and as a table. A bug counts as found where a finding of its
kind stands at its line or at the other party's; a clean twin must get no finding at all.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec

from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.subjects.planted_bugs import PlantedBug, planted_bugs
from mctskernel.experiments.value_check import RIGHT
from mctskernel.profiling.candidate import prepare
from mctskernel.profiling.emulable import emulable
from mctskernel.profiling.emulation import BlockOrder, Stopped, emulated_outputs
from mctskernel.profiling.emulator import Finding, Limits
from mctskernel.profiling.gpu.cuda_driver import describe_gpu
from mctskernel.profiling.processes.child_process import worker_environment
from mctskernel.profiling.sanitizer import find_compute_sanitizer, sanitize
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import draw_cases, judge
from mctskernel.profiling.versions import package_versions

LIMITS = Limits(lane_instructions=50_000_000, block_executions=5_000, seconds=10.0)
"""Far more than a planted kernel needs that ends at all."""

HANG_SECONDS = 20.0
ABREAST = 4
"""Kernels under all tools of compute-sanitizer at once: each tool is a process."""

ARCHITECTURE = "sm_90"

VALUES = "values alone"
"""What compares outputs and knows nothing else."""


class Verdict(msgspec.Struct, frozen=True):
    """What one means says of one kernel: `findings` as (kind, line, other line), `message` the first in words."""

    findings: list[tuple[str, int | None, int | None]] = []
    message: str = ""
    seconds: float = 0.0
    hung: bool = False


class Row(msgspec.Struct, frozen=True):
    """A planted bug, and what each means says of it and of its clean twin."""

    name: str
    kind: str
    why: str
    language: str
    line: int
    other_line: int | None
    faulty: dict[str, Verdict]
    clean: dict[str, Verdict]

    def found(self, means: str) -> bool:
        """Whether a means found the bug: a finding of its kind at one of its lines; of values, that they are wrong."""
        if means == VALUES:
            return bool(self.faulty[means].findings) or self.faulty[means].hung
        if self.faulty[means].hung:
            return self.kind == "limit"
        return any(
            kind == self.kind
            and (kind == "wrong_result" or {line, other} & {self.line, self.other_line} - {None})
            for kind, line, other in self.faulty[means].findings
        )


class Report(msgspec.Struct, frozen=True):
    """All rows, and what they depend on."""

    device: str
    fingerprint: dict[str, str]
    rows: list[Row]


@click.command()
@click.option("--device", type=click.Choice(["model", "gpu"]), default="model", show_default=True)
@click.option("--only", default="", help="Bugs whose names contain this.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table and its JSON into this folder.")
def main(*, device: str, only: str, out: Path | None) -> None:
    """Try every means of a device on every planted bug and its clean twin."""
    bugs = [bug for bug in planted_bugs() if only in bug.name]
    judged = _on_gpu(bugs) if device == "gpu" else _on_model(bugs)
    report = Report(device, _fingerprint(device), judged)
    text = table(report)
    click.echo(text)
    if out is not None:
        name = "races_model" if device == "model" else f"races_{_chip(report.fingerprint)}"
        write_result(out / f"{name}.json", report)
        (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")


def emulated(bug: PlantedBug, kernel: Kernel) -> Verdict:
    """What the emulator finds in a kernel of a bug, as a search without a GPU would run it."""
    began = time.perf_counter()
    task = load_task(bug.task_folder)
    built = emulable(task, prepare(task, kernel, ARCHITECTURE, Stages()), Stages())
    for index, case in enumerate(draw_cases(task, task.verify_shapes, 0)):
        order = list(BlockOrder)[index % len(BlockOrder)]
        outputs = emulated_outputs(task, built.candidate, built.modules, case, order=order, limits=LIMITS)
        if isinstance(outputs, Stopped):
            return _verdict(outputs.findings, outputs.check.message, time.perf_counter() - began)
        check = judge(case, outputs)
        if not check.passed:
            seconds = time.perf_counter() - began
            return Verdict([("wrong_result", None, None)], check.message, seconds)
    return Verdict(seconds=time.perf_counter() - began)


def sanitized(bug: PlantedBug, kernel: Kernel) -> dict[str, Verdict]:
    """What each tool of compute-sanitizer finds in a kernel of a bug. Raises ClickException where there is none."""
    done = sanitize(load_task(bug.task_folder), kernel, limit_seconds=HANG_SECONDS)
    verdicts = {}
    for report in done.reports:
        verdict = _verdict(report.findings, report.remark, report.seconds)
        verdicts[report.tool.value] = msgspec.structs.replace(verdict, hung="not done after" in report.remark)
    return verdicts


def compared(bug: PlantedBug, kernel: Kernel) -> Verdict:
    """What a comparison of values finds in a kernel of a bug that a GPU has run."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mctskernel-races-") as folder:
        source = Path(folder, "kernel" + kernel.language.suffix)
        source.write_text(kernel.source, encoding="utf-8")
        command = [sys.executable, "-P", "-m", "mctskernel.experiments.value_check"]
        command += [str(bug.task_folder), str(source), "0"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                cwd=folder,
                env=worker_environment(Path(folder)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(seconds=time.perf_counter() - began, hung=True)
    said = done.stdout.strip() or done.stderr.strip()[-300:]
    seconds = time.perf_counter() - began
    return (
        Verdict(seconds=seconds) if said == RIGHT else Verdict([("wrong_result", None, None)], said, seconds)
    )


def table(report: Report) -> str:
    """The rows as Markdown: the means that found each bug, and what was said of clean twins."""
    means = list(report.rows[0].faulty) if report.rows else []
    lines = ["# Planted bugs, and what finds them", ""]
    lines += [f"| planted bug | kind | {' | '.join(means)} |", f"|---|---|{'---|' * len(means)}"]
    for row in report.rows:
        cells = [_cell(row, each) for each in means]
        lines.append(f"| {row.name} ({row.language}): {row.why} | {row.kind} | {' | '.join(cells)} |")
    totals = [f"{sum(row.found(each) for row in report.rows)} of {len(report.rows)}" for each in means]
    lines.append(f"| **found** | | {' | '.join(totals)} |")
    alarms = [
        sum(bool(row.clean[each].findings) or row.clean[each].hung for row in report.rows) for each in means
    ]
    lines.append(f"| **clean twins refused** | | {' | '.join(map(str, alarms))} |")
    return "\n".join(lines)


def _cell(row: Row, means: str) -> str:
    verdict = row.faulty[means]
    if verdict.hung:
        return "hangs"
    if row.found(means):
        return "found"
    return ", ".join(dict.fromkeys(kind.replace("_", " ") for kind, _, _ in verdict.findings)) or "-"


def _on_model(bugs: Iterable[PlantedBug]) -> list[Row]:
    return [
        _row(bug, {"emulator": emulated(bug, bug.faulty)}, {"emulator": emulated(bug, bug.clean)})
        for bug in bugs
    ]


def _on_gpu(bugs: Sequence[PlantedBug]) -> list[Row]:
    if find_compute_sanitizer() is None:
        raise click.ClickException("compute-sanitizer is not installed here.")

    def both(judge_one: Callable[[PlantedBug, Kernel], Verdict]) -> list[tuple[Verdict, Verdict]]:
        with ThreadPoolExecutor(4 * ABREAST) as pool:
            return list(pool.map(lambda bug: (judge_one(bug, bug.faulty), judge_one(bug, bug.clean)), bugs))

    values = both(compared)
    with ThreadPoolExecutor(ABREAST) as pool:
        faulty = list(pool.map(lambda bug: sanitized(bug, bug.faulty), bugs))
        clean = list(pool.map(lambda bug: sanitized(bug, bug.clean), bugs))
    return [
        _row(bug, {**found, VALUES: wrong}, {**alarms, VALUES: right})
        for bug, found, alarms, (wrong, right) in zip(bugs, faulty, clean, values, strict=True)
    ]


def _row(bug: PlantedBug, faulty: dict[str, Verdict], clean: dict[str, Verdict]) -> Row:
    language = bug.faulty.language.value
    return Row(bug.name, bug.kind, bug.why, language, bug.line, bug.other_line, faulty, clean)


def _verdict(findings: Sequence[Finding], message: str, seconds: float) -> Verdict:
    said = findings[0].message if findings else message
    return Verdict([(each.kind, each.line, each.other_line) for each in findings], said, seconds)


def _fingerprint(device: str) -> dict[str, str]:
    versions = package_versions("nvidia-cuda-nvrtc", "triton", "numpy")
    program = find_compute_sanitizer()
    if device == "model" or program is None:
        return {"device": device, "architecture": ARCHITECTURE, **versions}
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = next((line for line in said.stdout.splitlines() if line.startswith("Version")), "")
    return {"device": device, "gpu": describe_gpu(), "compute-sanitizer": version, **versions}


def _chip(fingerprint: dict[str, str]) -> str:
    return next(
        (word.lower() for word in fingerprint["gpu"].split() if word[:1] in "ABHL" and word[1:2].isdigit()),
        "gpu",
    )


if __name__ == "__main__":
    main()
