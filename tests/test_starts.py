"""Starting points beside the starting kernel: of any language, tried first, once, and what speed-ups are told over."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mctskernel.answer import choose
from mctskernel.cli import main, tasks
from mctskernel.cli.errors import BAD_TASK
from mctskernel.config import OUTSIDE, SearchConfig
from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.task import Precision
from mctskernel.core.task_file import load_task
from mctskernel.loop import Search, Snapshot
from mctskernel.problems.problem import Problem
from mctskernel.problems.torch_task import COMPILED_START
from mctskernel.profiling.processes.forked import CallError
from mctskernel.report.view import load_view
from mctskernel.run import RunFolder
from mctskernel.run.search import OTHER_START, begin
from mctskernel.tasks.starts import (
    best_start,
    origin,
    set_plain_aside,
    start_speedup,
    starting_points,
)
from mctskernel.tree.blobs import MemoryBlobs, get_edit, put_edit
from mctskernel.tree.journal import read_tree
from mctskernel.tree.node import Tree
from mctskernel.tree.trajectory import edit_title
from tests import landscape
from tests.conftest import WriteTask

NEAR = (landscape.BEST[0] + 1, landscape.BEST[1])
TRITON = landscape.kernel(*NEAR, Language.TRITON)


def write_starts(folder: Path) -> None:
    (folder / "start_near.py").write_text(TRITON.source)
    (folder / "start_far.cu").write_text(landscape.kernel(0, 0).source)


def judge(kernel: Kernel) -> Evaluation:
    assert (kernel.language is Language.TRITON) == kernel.source.startswith("X = ")
    return landscape.judge(kernel)


def begun(folder: Path, budget: int, language: Language | None = None) -> Search:
    starts = starting_points(landscape.task(folder), language)
    found = landscape.search(
        Budget(evaluations=budget), starts=starts, executor=landscape.InProcess(1, judge)
    )
    found.run((landscape.start(found),))
    return found


def titles(tree: Tree) -> list[str]:
    return [edit_title(tree, node) for node in tree.nodes[1:]]


def test_starting_points_of_all_languages_are_tried_before_anything_else_and_once(tmp_path: Path) -> None:
    write_starts(tmp_path)
    tree = begun(tmp_path, 30).tree_search.tree
    assert titles(tree)[:2] == ["start from far", "start from near"]
    assert [node.kernel.language for node in tree.nodes[:3]] == ["cuda", "cuda", "triton"]
    assert len([title for title in titles(tree) if title.startswith("start from")]) == 2
    assert tree.evaluations == 30
    assert titles(begun(tmp_path, 3, Language.CUDA).tree_search.tree)[:1] == ["start from far"]
    for edit in starting_points(landscape.task(tmp_path)):
        blobs = MemoryBlobs()
        assert get_edit(blobs, put_edit(blobs, edit)).change == edit.change


def test_progress_is_over_the_fastest_start_and_only_rises(tmp_path: Path) -> None:
    write_starts(tmp_path)
    (tmp_path / "start_odd.cu").write_text(landscape.kernel(3, 9).source)
    told: list[Snapshot] = []
    starts = starting_points(landscape.task(tmp_path))
    found = landscape.search(Budget(evaluations=12), starts=starts, follow=told.append)
    found.run((landscape.start(found),))
    speedups = [snapshot.best_speedup for snapshot in told]
    assert speedups == sorted(speedups)
    assert speedups[:4] == [1.0] * 4
    assert speedups[-1] > 1
    assert "The start 'odd' is left out (build error): odd" in [snapshot.note for snapshot in told]


def test_the_winner_says_where_it_came_from_and_how_much_faster_than_the_fastest_start_it_is(
    tmp_path: Path,
) -> None:
    write_starts(tmp_path)
    found = begun(tmp_path, 12)
    tree, answer = found.tree_search.tree, choose(found.tree_search, found.executor)
    assert answer.node is not None
    assert origin(tree, answer.node) == "near"
    assert origin(tree, 0) == ""
    assert (best_start(tree), best_start(tree, {2})) == (2, 0)
    assert start_speedup(tree) == pytest.approx(
        landscape.seconds(landscape.kernel(1, 1)) / landscape.seconds(landscape.kernel(*NEAR))
    )
    score = tree.nodes[answer.node].score
    assert score is not None
    assert answer.speedup == pytest.approx(score.speedup / start_speedup(tree))


def test_a_start_that_fails_its_final_validation_is_no_start(tmp_path: Path) -> None:
    write_starts(tmp_path)
    found = begun(tmp_path, 3)
    assert isinstance(found.executor, landscape.InProcess)
    found.executor.refuses = {TRITON.identity}
    answer = choose(found.tree_search, found.executor)
    assert (answer.node, answer.speedup, [node for node, _ in answer.refused]) == (0, 1.0, [2])


def test_a_resumed_search_goes_on_with_the_starting_points_that_are_left(tmp_path: Path) -> None:
    write_starts(tmp_path)
    first = begun(tmp_path, 2)
    assert titles(first.tree_search.tree) == ["start from far"]
    again = landscape.search(Budget(evaluations=3), tree_search=first.tree_search, starts=first.starts)
    again.run(first.tree_search.resume())
    assert titles(first.tree_search.tree) == ["start from far", "start from near"]


def test_without_a_kernel_file_the_first_start_is_the_root(write_task: WriteTask) -> None:
    """In the language that is asked for; where several are there, `kernel.cu` comes first."""
    small_task = write_task()
    (small_task / "start_a.py").write_text(TRITON.source)
    (small_task / "start_b.py").write_text("X = 1")
    task = load_task(small_task, Language.TRITON)
    assert task.starting_kernel == TRITON
    assert [edit.title for edit in starting_points(task)] == ["start from b"]
    assert load_task(small_task).starting_kernel.language is Language.CUDA
    (small_task / "kernel.cu").unlink()
    assert load_task(small_task).starting_kernel == task.starting_kernel


@pytest.mark.slow
def test_a_search_whose_starting_kernel_fails_begins_at_the_next_start(
    write_task: WriteTask, tmp_path: Path
) -> None:
    folder = write_task()
    right = (folder / "kernel.cu").read_text()
    (folder / "start_templates.cu").write_text(right.replace("2", "3"))
    set_plain_aside(folder)
    assert load_task(folder).starting_kernel.source != right
    assert not starting_points(load_task(folder))
    words = ["search", str(folder), "--device", "model", "--budget", "2", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "The search began at another start." in " ".join(done.output.split())
    assert load_view(tmp_path / "run").source(0) == right
    (folder / "plain.cu").write_text(right.replace("2", "5"))
    assert CliRunner().invoke(main, [*words[:-1], str(tmp_path / "again")]).exit_code == BAD_TASK


class Refusing(landscape.InProcess):
    """Refuses every kernel but one at the end."""

    def final_validation(self, kernel: Kernel, baseline: Kernel) -> Evaluation:
        self.refuses = {kernel.identity} - {TRITON.identity}
        return super().final_validation(kernel, baseline)


def test_a_run_whose_kernels_are_all_refused_is_kept_beside_the_next(
    write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = RunFolder.load_task
    landscape.stand_in(monkeypatch).append(lambda: Refusing(2))
    monkeypatch.setattr(RunFolder, "load_task", load)
    folder = write_task()
    (folder / "kernel.cu").write_text(landscape.kernel(1, 1).source)
    (folder / "start_near.py").write_text(TRITON.source)
    configuration = SearchConfig(task="bowl", device="model", proposer=OUTSIDE, budget=Budget(evaluations=1))
    found = begin(tmp_path / "run", folder, configuration)
    assert found.answer.node == 0
    assert found.tree.nodes[0].kernel.identity == TRITON.identity
    assert "wrong on a held-out shape" in found.notes[0]
    assert found.notes[0].endswith(f"is kept in run-refused-1. {OTHER_START}")
    (refused,) = read_tree(tmp_path / "run-refused-1" / "journal.jsonl").nodes
    assert refused.kernel.identity == landscape.kernel(1, 1).identity


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Problem("", "", {"kernel.py": b""}), ""),
        (Problem("", "", {}, ("It is none.",)), "It is none."),
        (CallError("Lost."), "Lost."),
    ],
)
def test_a_start_that_is_generated_meanwhile_is_added_or_it_is_said_why_not(
    made: object,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = SimpleNamespace(ended=made, collect=lambda: True, close=lambda: None)
    monkeypatch.setattr(tasks, "ForkedCall", lambda *_, **__: call)
    with tasks.compiled_start("", Precision.LOCKED) as add:
        add(tmp_path)
    assert (tmp_path / COMPILED_START).exists() is (not said)
    assert said in capsys.readouterr().err
