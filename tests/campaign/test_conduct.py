"""Campaigns over recorded spaces: where evaluations go, and what stopping them anywhere leaves behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.campaign import conduct as conducting
from mctskernel.campaign.conduct import Moment, conduct
from mctskernel.campaign.configuration import Campaign, CampaignError, parse_campaign
from mctskernel.campaign.report import FILE, Report, markdown, read_report
from mctskernel.core.device import DeviceError
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.task import TaskError
from mctskernel.executors.recorded import RecordedExecutor
from mctskernel.report.view import load_view
from mctskernel.search import Ending
from mctskernel.space_task import write_space_task
from mctskernel.tree.events import Evaluated, Resumed, Submitted
from mctskernel.tree.journal import read_events
from tests import spaces

SLOWEST = (32, 1, "column", True)
FAST = (64, 2, "row", False)
FAILS = (256, 4, "row", False)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three starts in the same bowl: far from its bottom, near it, and where nothing builds."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, start in (("far", SLOWEST), ("near", FAST), ("failing", FAILS)):
        (folder / name).mkdir()
        write_space_task(spaces.bowl(), spaces.entry(*start), folder / name)
    return folder


def a_campaign(tasks: Path, *, evaluations: int = 20, workers: int = 1, **shares: float) -> Campaign:
    tables = "".join(
        f'[[task]]\ntask = "{tasks / name}"\nshare = {share}\nstrategy = "mcts"\n'
        for name, share in (shares or {"far": 0.8, "near": 0.1}).items()
    )
    return parse_campaign(
        f'device = "recorded"\nworkers = {workers}\n[budget]\nevaluations = {evaluations}\n{tables}'
    )


def conducted(
    campaign: Campaign,
    out: Path,
    follow: Callable[[Moment], None] = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Report:
    return conduct(campaign, out, follow, stop_requested)[0]


def told(out: Path, kind: type[Submitted] | type[Evaluated]) -> list[str]:
    """What was begun in all runs, or what came back, with the run's name."""
    return [
        f"{journal.parent.name} {event.node}"
        for journal in sorted((out / "runs").glob("*/journal.jsonl"))
        for event in read_events(journal)
        if isinstance(event, kind)
    ]


def evaluations(out: Path) -> list[str]:
    """What came back in all runs, with the run's name."""
    return told(out, Evaluated)


@pytest.fixture(scope="module")
def finished(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report, list[Moment]]:
    out = tmp_path_factory.mktemp("finished") / "out"
    moments: list[Moment] = []
    return out, conducted(a_campaign(tasks), out, moments.append), moments


def test_one_budget_is_spent_over_all_tasks(finished: tuple[Path, Report, list[Moment]]) -> None:
    out, report, moments = finished
    assert report.ending == Ending.BUDGET
    assert report.evaluations == len(report.trace) == len(moments) == 20
    assert sum(row.evaluations for row in report.tasks) == len(evaluations(out)) == 20
    assert [moment.evaluations for moment in moments] == list(range(1, 21))
    assert moments[-1].spent_fraction == 1.0
    assert sorted(told(out, Submitted)) == sorted(set(evaluations(out)))


def test_what_a_search_remarks_is_passed_on_and_no_evaluation(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    really_wait = RecordedExecutor.wait

    def wait(executor: RecordedExecutor, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        waited.append(timeout)
        executor.remarks = ("The server is not there.",) if len(waited) % 3 == 0 else ()
        return really_wait(executor, timeout)

    monkeypatch.setattr(RecordedExecutor, "wait", wait)
    moments: list[Moment] = []
    report = conducted(a_campaign(tasks, evaluations=8), tmp_path / "out", moments.append)
    said = [moment for moment in moments if moment.snapshot.remark]
    assert said
    assert {moment.snapshot.remark for moment in said} == {"The server is not there."}
    assert report.evaluations == len(report.trace) == len(evaluations(tmp_path / "out")) == 8
    assert [moment.evaluations for moment in moments if not moment.snapshot.remark] == list(range(1, 9))


def test_what_promises_more_gets_more(finished: tuple[Path, Report, list[Moment]]) -> None:
    _, report, _ = finished
    far, near = report.tasks
    assert sorted(report.trace[:2]) == [0, 1], "every starting kernel comes first"
    assert far.evaluations > near.evaluations >= 2


def test_the_models_time_follows_amdahls_law(finished: tuple[Path, Report, list[Moment]]) -> None:
    _, report, moments = finished
    far, near = report.tasks
    assert report.rest == pytest.approx(0.1)
    assert report.after.value == pytest.approx(0.1 + 0.8 / far.speedup.value + 0.1 / near.speedup.value)
    assert moments[-1].now == pytest.approx(report.after.value)
    assert report.times[-1][1] == pytest.approx(report.after.value)
    assert far.share_after + near.share_after + report.rest / report.after.value == pytest.approx(1.0)
    times = [moment.now for moment in moments]
    assert times == sorted(times, reverse=True)


def test_every_task_is_a_run_like_any_other(finished: tuple[Path, Report, list[Moment]]) -> None:
    out, report, _ = finished
    for row in report.tasks:
        view = load_view(out / row.run)
        assert view.evaluations == row.evaluations == row.concluded
        assert view.answer is not None
        assert view.answer.speedup == pytest.approx(row.speedup.value)
        assert row.passed


def test_the_page_tells_all_of_it(finished: tuple[Path, Report, list[Moment]]) -> None:
    out, report, _ = finished
    page = markdown(read_report(out))
    assert page == markdown(report)
    assert f"from 100.0% to {report.after.value:.1%}, " in page
    assert "10.0% of what it was is none of these kernels'." in page
    assert "| far " in page
    assert "`runs/near`" in page
    assert "| 19 to 20" in page


def test_a_campaign_that_is_over_is_not_searched_again(finished: tuple[Path, Report, list[Moment]]) -> None:
    out, report, _ = finished
    before = {path: path.read_bytes() for path in (out / "runs").rglob("*.jsonl")}
    again = conducted(a_campaign(_tasks_of(report)), out)
    assert {path: path.read_bytes() for path in (out / "runs").rglob("*.jsonl")} == before
    assert (again.evaluations, again.after) == (report.evaluations, report.after)
    assert again.seconds >= report.seconds


def _tasks_of(report: Report) -> Path:
    return Path(report.tasks[0].task).parent


def test_a_larger_budget_goes_on(finished: tuple[Path, Report, list[Moment]], tmp_path: Path) -> None:
    out, report, _ = finished
    shutil.copytree(out, tmp_path / "out")
    more = conducted(a_campaign(_tasks_of(report), evaluations=26), tmp_path / "out")
    assert more.evaluations == 26
    assert more.after.value <= report.after.value
    assert all(row.concluded == row.evaluations for row in more.tasks)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("killed_at", [1, 9])
def test_a_killed_campaign_spends_the_rest_of_its_budget(
    tasks: Path, tmp_path: Path, workers: int, killed_at: int
) -> None:
    """The disk as it is after some evaluation is what a process leaves that is killed there."""
    wanted = a_campaign(tasks, evaluations=16, workers=workers)

    def copy(moment: Moment) -> None:
        if moment.evaluations == killed_at:
            shutil.copytree(tmp_path / "out", tmp_path / "left")

    conducted(wanted, tmp_path / "out", copy)
    left = evaluations(tmp_path / "left")
    assert len(left) == killed_at
    report = conducted(wanted, tmp_path / "left")
    found = evaluations(tmp_path / "left")
    assert set(left) < set(found)
    assert len(found) == len(set(found)) == report.evaluations == 16
    assert sorted(told(tmp_path / "left", Submitted)) == sorted(found), "what was cut off is evaluated, once"


def test_stopped_by_ctrl_c_it_goes_on(tasks: Path, tmp_path: Path) -> None:
    moments: list[Moment] = []
    wanted = a_campaign(tasks, workers=2)
    report = conducted(wanted, tmp_path / "out", moments.append, lambda: len(moments) >= 7)
    assert report.ending == Ending.INTERRUPTED
    assert 7 <= report.evaluations < 20
    assert all(row.concluded is None for row in report.tasks)
    assert "(not final)" in markdown(report)
    report = conducted(wanted, tmp_path / "out")
    assert (report.ending, report.evaluations) == (Ending.BUDGET, 20)
    assert all(row.passed for row in report.tasks)


def test_a_task_without_a_valid_start_is_left_out(tasks: Path, tmp_path: Path) -> None:
    wanted = a_campaign(tasks, far=0.4, failing=0.5)
    for _ in range(2):
        report = conducted(wanted, tmp_path / "out")
        far, failing = report.tasks
        assert (far.evaluations, failing.evaluations) == (19, 1)
        assert failing.ending == Ending.NO_BASELINE
        assert "build error" in failing.problem
        assert report.after.value == pytest.approx(0.1 + 0.4 / far.speedup.value + 0.5)
        assert "`failing` is left out: The starting kernel can't be searched from" in markdown(report)


def test_a_tasks_own_limit_leaves_the_rest_to_the_others(tasks: Path, tmp_path: Path) -> None:
    wanted = parse_campaign(
        f'device = "recorded"\n[budget]\nevaluations = 14\n'
        f'[[task]]\ntask = "{tasks / "far"}"\nshare = 0.6\nlimits = {{ evaluations = 4 }}\n'
        f'[[task]]\ntask = "{tasks / "near"}"\nshare = 0.3\n'
    )
    report = conducted(wanted, tmp_path / "out")
    assert [row.evaluations for row in report.tasks] == [4, 10]


def test_it_ends_when_nothing_is_left_to_try(tmp_path: Path) -> None:
    (tmp_path / "single").mkdir()
    write_space_task(spaces.single(), spaces.single().entries[0], tmp_path / "single")
    report = conducted(a_campaign(tmp_path, evaluations=1000, single=0.5), tmp_path / "out")
    assert (report.ending, report.evaluations) == (Ending.EXHAUSTED, 1)


def test_executors_that_make_room_are_opened_again(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conducting, "MOST_OPEN", 1)
    report = conducted(a_campaign(tasks, evaluations=14), tmp_path / "out")
    assert report.evaluations == len(set(evaluations(tmp_path / "out"))) == 14
    journals = [run / "journal.jsonl" for run in (tmp_path / "out" / "runs").iterdir()]
    assert sum(isinstance(event, Resumed) for journal in journals for event in read_events(journal)) > 2


def test_a_broken_task_is_met_before_anything_is_evaluated(tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="absent"):
        conducted(a_campaign(tasks, far=0.5, absent=0.2), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kernels_and_recorded_spaces_do_not_mix(tasks: Path, small_task: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="double is a kernel, and the campaign's device is recorded"):
        conducted(a_campaign(tasks, **{"far": 0.5, str(small_task): 0.2}), tmp_path / "out")


def test_a_run_that_was_searched_otherwise_is_refused(
    finished: tuple[Path, Report, list[Moment]], tmp_path: Path
) -> None:
    out, report, _ = finished
    tasks = _tasks_of(report)
    other = parse_campaign(
        f'device = "recorded"\nseed = 3\n[budget]\nevaluations = 30\n'
        f'[[task]]\ntask = "{tasks / "far"}"\nshare = 0.5\n'
    )
    with pytest.raises(CampaignError, match=r"'far': .* was searched with seed = 0, not 3"):
        conducted(other, out)
    (tmp_path / "something").write_text("of somebody's")
    with pytest.raises(CampaignError, match="no campaign"):
        conducted(a_campaign(tasks), tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(CampaignError, match=r"campaign\.json is no campaign's"):
        read_report(tmp_path)


def test_kernels_on_one_device_share_it_and_pass_the_last_gate(small_task: Path, tmp_path: Path) -> None:
    tables = "".join(
        f'[[task]]\ntask = "{small_task}"\nname = "{name}"\nshare = 0.4\n' for name in ("one", "two")
    )
    wanted = parse_campaign(f'device = "model"\nworkers = 1\n[budget]\nevaluations = 3\n{tables}')
    report = conducted(wanted, tmp_path / "out")
    assert report.evaluations == 3
    assert report.source == "modelled"
    for row in report.tasks:
        assert row.passed
        assert row.headroom is not None
        assert load_view(tmp_path / "out" / row.run).answer is not None
