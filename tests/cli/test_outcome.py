"""The summary at the end of a search."""

from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.answer import Answer
from mctskernel.cli.errors import BAD_TASK, INTERRUPTED
from mctskernel.cli.following import print_outcome
from mctskernel.loop import StopReason
from mctskernel.report.view import load_view
from mctskernel.run.search import SearchResult
from tests.synthetic_run import SyntheticRun, timed


@pytest.fixture
def search_result(tmp_path: Path, small_task: Path) -> SearchResult:
    told = SyntheticRun(tmp_path / "run", small_task)
    (made,) = told.edits(0, ("twice as fast", timed(50)))
    view = load_view(told.folder.path)
    return SearchResult(view.folder, view.tree, StopReason.BUDGET, Answer(made, 2.0))


def test_warnings_about_the_machine_and_the_way_on(
    search_result: SearchResult, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outcome(replace(search_result, notes=("Counters are forbidden: ask for permission.",)))
    said = capsys.readouterr()
    assert said.err == "mctskernel: Counters are forbidden: ask for permission.\n"
    assert "Stopped: the budget is spent." in said.out
    with pytest.raises(SystemExit) as exit_:
        print_outcome(replace(search_result, stop_reason=StopReason.INTERRUPTED))
    assert exit_.value.code == INTERRUPTED
    assert f"mctskernel resume {search_result.folder.path}\n" in capsys.readouterr().out


def test_without_a_baseline_there_is_nothing_but_the_reason(
    search_result: SearchResult, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        print_outcome(replace(search_result, stop_reason=StopReason.NO_BASELINE, problem="It doesn't build."))
    assert exit_.value.code == BAD_TASK
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "mctskernel: It doesn't build.\n")
