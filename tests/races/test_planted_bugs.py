"""The emulator reports every planted bug at its line, and reports nothing for the twin without the bug."""

from collections.abc import Sequence

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.profiling.candidate import prepare
from mctskernel.profiling.emulation import BlockOrder, Stopped, emulable, emulated_outputs
from mctskernel.profiling.emulator import Finding, Limits
from mctskernel.profiling.stages import Stages
from mctskernel.profiling.verify import check_outputs, draw_cases
from tests.races.planted_bugs import PlantedBug, planted_bugs

LIMITS = Limits(lane_instructions=50_000_000, block_executions=5_000, seconds=60.0)
"""Far more than a planted kernel needs that ends at all."""

FAST_SHARE = 5  # one bug in so many is tested by `make test`, the others by `make test-all`

BUGS = planted_bugs()


def emulated(bug: PlantedBug, kernel: Kernel) -> tuple[Sequence[Finding], str]:
    """The emulator's findings and its message, at the verify shapes as in a search; empty for a correct kernel."""
    task = load_task(bug.task_folder)
    built = emulable(task, prepare(task, kernel, "sm_90", Stages()), Stages())
    for index, case in enumerate(draw_cases(task, task.verify_shapes, 0)):
        order = list(BlockOrder)[index % len(BlockOrder)]
        outputs = emulated_outputs(task, built.candidate, built.modules, case, order=order, limits=LIMITS)
        if isinstance(outputs, Stopped):
            return outputs.findings, outputs.check.message
        check = check_outputs(case, outputs)
        if not check.passed:
            return (), check.message
    return (), ""


def test_the_corpus_is_large_and_varied() -> None:
    assert len(BUGS) >= 50
    assert len({bug.kind for bug in BUGS}) >= 8
    assert {bug.faulty.language.value for bug in BUGS} == {"cuda", "triton"}


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=[pytest.mark.slow] if number % FAST_SHARE else [])
        for number, bug in enumerate(BUGS)
    ],
)
def test_a_planted_bug_is_found_where_it_is_and_its_twin_passes(bug: PlantedBug) -> None:
    findings, message = emulated(bug, bug.faulty)
    if bug.kind == "wrong_result":
        assert message
        assert not findings
    else:
        found = [(each.line, each.other_line) for each in findings if each.kind == bug.kind]
        assert bug.line in [line for line, _ in found], findings
        if bug.other_line is not None:
            assert (bug.line, bug.other_line) in found, findings
        if bug.kind == "race":
            assert all(other is not None for _, other in found), "a race has two sides"
    assert emulated(bug, bug.clean) == ((), "")
