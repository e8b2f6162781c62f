"""compute-sanitizer's own output is understood, and a machine that refuses it is a sentence."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.task import shape_label
from mctskernel.core.task_file import load_task
from mctskernel.profiling import sanitizer
from mctskernel.profiling.sanitizer import (
    VALIDATION_TOOLS,
    Tool,
    failure,
    find_compute_sanitizer,
    parse_findings,
    sanitize,
)
from tests.races.planted_bugs import planted_bugs

OUTPUTS = Path(__file__).parent / "sanitizer_outputs"
"""What compute-sanitizer 2025.3 printed on an H100 about planted bugs, the longest ones shortened."""

Places = list[tuple[str, int | None, int | None]]


def places(name: str) -> Places:
    output = (OUTPUTS / f"{name}.txt").read_text()
    found = parse_findings(Tool(name.partition("_")[0]), output)
    return [(each.kind, each.line, each.other_line) for each in found]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memcheck_out_of_bounds", [("out_of_bounds", 13, None)]),
        ("memcheck_misaligned", [("misaligned", 13, None)]),
        ("racecheck_block", [("race", 12, 14)]),
        (
            "racecheck_warp",
            [("race", 25, 23), ("race", 25, 27), ("race", 21, 19), ("race", 21, 23), ("race", 27, 30)],
        ),
        ("initcheck_triton", [("uninitialised_read", 28, None)]),
        ("synccheck_block", [("divergent_barrier", 14, None)]),
        ("racecheck_lost", []),
    ],
)
def test_recorded_outputs_are_read_with_their_lines(name: str, expected: Places) -> None:
    assert places(name) == expected


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (
            "========= Error: Device not supported.\n",
            "This machine does not allow racecheck: Device not supported.",
        ),
        (
            "mctskernel: There is no driver here.\n",
            "racecheck could not replay the kernel: There is no driver here.",
        ),
        ("========= Error: Terminated.\n", "racecheck could not check the kernel: Terminated."),
        ("", "racecheck could not check the kernel: it printed nothing"),
    ],
)
def test_a_machine_that_refuses_is_a_sentence(output: str, sentence: str) -> None:
    assert failure(Tool.RACECHECK, output) == sentence
    assert parse_findings(Tool.RACECHECK, output) == ()


def test_without_the_program_one_note_says_so(small_task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find_compute_sanitizer", lambda: None)
    task = load_task(small_task)
    done = sanitize(task, task.starting_kernel)
    assert done.findings == ()
    assert [report.tool for report in done.reports] == list(VALIDATION_TOOLS)
    (note,) = done.notes
    assert note.startswith("compute-sanitizer is not on the PATH")


def stand_in(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of compute-sanitizer."""
    program = folder / "compute-sanitizer"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time, subprocess\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find_compute_sanitizer", lambda: str(program))


def test_shapes_that_are_too_large_are_named(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "", monkeypatch)
    task = load_task(small_task)
    large = dict.fromkeys(task.verify_shapes[0], 1 << 28)
    done = sanitize(replace(task, held_out_shapes=(large,)), task.starting_kernel)
    assert done.notes == (f"compute-sanitizer did not check at {shape_label(large)}: too large for it.",)
    assert sanitize(task, task.starting_kernel).notes == ()


def test_every_tool_runs_in_a_process_without_secrets(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_TOKEN", "xyzzy")
    body = (
        "tool = sys.argv[sys.argv.index('--tool') + 1]\n"
        "leaks = [value for value in os.environ.values() if 'xyzzy' in value]\n"
        "freedom, seconds = sys.argv[-2:]\n"
        "assert seconds == '5.0' and freedom == 'confined' and 'twice' in open(sys.argv[-4]).read()\n"
        "print('at shape n=1')\n"
        "print(f'========= Invalid __global__ read of size 4 bytes')\n"
        "print(f'=========     at k+0x1 in kernel.cu:{len(tool) + 100 * len(leaks)}')"
    )
    stand_in(tmp_path, body, monkeypatch)
    task = load_task(small_task)
    done = sanitize(task, task.starting_kernel, limit_seconds=10.0)
    assert done.notes == ()
    assert [(report.tool, report.findings[0].line) for report in done.reports] == [
        (tool, len(tool.value)) for tool in VALIDATION_TOOLS
    ]


REFUSES_ONE_KERNEL = """
print("at shape n=1")
if "twice_as" in open(sys.argv[-4]).read():
    print("mctskernel: The kernel can't be built.")
    sys.exit(1)
if sys.argv[-2] == "free":
    print("========= Invalid __global__ read of size 4 bytes")
"""


@pytest.mark.slow
def test_no_kernel_gets_itself_a_free_process(
    small_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, REFUSES_ONE_KERNEL, monkeypatch)
    task = load_task(small_task)
    done = sanitize(task, replace(task.starting_kernel, source=task.starting_kernel.source + "// twice_as\n"))
    assert done.findings == ()
    assert done.notes[0] == "memcheck could not replay the kernel: The kernel can't be built."


@pytest.mark.parametrize("said", ["no end of line", "========= ", "x=", "="])
def test_what_a_kernel_prints_hides_no_finding(said: str) -> None:
    output = (OUTPUTS / "memcheck_out_of_bounds.txt").read_text()
    (expected,) = parse_findings(Tool.MEMCHECK, output)
    start = output.index("========= Invalid")
    (found,) = parse_findings(Tool.MEMCHECK, f"{output[:start]}{said}{output[start:]}")
    assert (found.kind, found.line) == (expected.kind, expected.line)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["global_off_by_one_at_the_end", "barrier_missing_after_store", "scratch_uninitialised"]
)
def test_planted_bugs_are_found_on_the_gpu(name: str) -> None:
    if find_compute_sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed here")
    (bug,) = [bug for bug in planted_bugs() if bug.name == name]
    task = load_task(bug.task_folder)
    done = sanitize(task, bug.faulty)
    if any("does not allow" in note for note in done.notes):
        pytest.skip(done.notes[0])
    assert any(each.kind == bug.kind and bug.line in (each.line, each.other_line) for each in done.findings)
    assert sanitize(task, bug.clean).findings == ()
