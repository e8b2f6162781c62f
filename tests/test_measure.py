"""Runs measured again: what is taken along, and what comes of it where times are planted."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.core.budget import Budget
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.kernel import Kernel
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.loop import Search, StopReason
from mctskernel.report.view import View, load_view
from mctskernel.run import prepare_run, write_manifest
from mctskernel.run.repeating import best_lineages, measure
from mctskernel.run.search import SearchResult, finish
from mctskernel.tree.journal import Journal, read_tree
from mctskernel.tree.node import Node, Tree
from mctskernel.tree.search import TreeSearch
from tests.landscape import InProcess, Neighbours, judge, kernel, seconds, taking
from tests.synthetic_run import with_configuration

CONFIGURATION = with_configuration(budget=Budget(evaluations=40))
START = (12, 2)  # the way to the best kernel is never the first edit that is proposed


@pytest.fixture(scope="module")
def task(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landscape's, on disk."""
    folder = shutil.copytree(small_task, tmp_path_factory.mktemp("landscape") / "task")
    (folder / "kernel.cu").write_text(kernel(*START).source)
    return folder


@pytest.fixture(scope="module")
def before(task: Path) -> View:
    """A finished run over the landscape, on disk."""
    return searched(task.parent / "before", task, InProcess())


def searched(path: Path, task: Path, executor: InProcess) -> View:
    folder = prepare_run(path, load_task(task))
    write_manifest(folder, CONFIGURATION, {"gpu": "modelled"})
    with Journal(folder.journal) as journal:
        tree_search = TreeSearch(Tree(), journal, folder.blobs)
        root = tree_search.start(folder.load_task().starting_kernel, CONFIGURATION.policy, 0)
        search = Search(
            tree_search,
            folder.load_task(),
            Neighbours(),
            executor,
            CONFIGURATION.budget,
        )
        finish(folder, search, search.run((root,)))
    return load_view(folder.path)


def again(
    before: View, path: Path, judged_by: Callable[[Kernel], Evaluation], stop_after: int = 1000
) -> tuple[SearchResult, InProcess]:
    """The run measured again by an executor that judges as planted."""
    executor = InProcess(capacity=3, judged_by=judged_by)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("mctskernel.run.search.open_executor", lambda *_: nullcontext(executor))
        search_result = measure(
            before.folder,
            path,
            device="model",
            architecture="H100",
            workers=3,
            best_nodes=5,
            follow=lambda _: None,
            stop_requested=lambda: len(executor.judged) >= stop_after,
        )
    return search_result, executor


def planted(time: Callable[[Kernel], float]) -> Callable[[Kernel], Evaluation]:
    return lambda candidate: taking(time(candidate), Source.MEASURED)


def test_the_best_come_with_all_that_led_to_them(before: View) -> None:
    wanted = best_lineages(before.folder, 3)
    nodes = before.tree.nodes
    assert wanted[0] == 0
    assert before.answer is not None
    assert before.answer.node in wanted
    assert all(nodes[number].parent in wanted for number in wanted[1:])
    times = {node.id: seconds(kernel_of(before, node.id)) for node in nodes if node.outcome is Outcome.OK}
    assert set(sorted(times, key=times.__getitem__)[:3]) <= set(wanted)
    assert len(wanted) < len(nodes)


def test_an_answer_that_is_not_the_fastest_comes_along(before: View, tmp_path: Path, task: Path) -> None:
    lineage = before.tree.lineage(before.best.id)
    executor = InProcess()
    executor.refuses = {kernel_of(before, node).identity for node in lineage[1:]}
    run = searched(tmp_path / "gated", task, executor)
    assert run.answer is not None
    assert run.answer.node not in {None, *lineage}
    assert {*lineage, run.answer.node} <= set(best_lineages(run.folder, 1))


def test_the_lineage_is_kept_and_the_answer_is_chosen_by_the_new_times(before: View, tmp_path: Path) -> None:
    # Here the landscape is upside down: what was the fastest is the slowest.
    search_result, _ = again(before, tmp_path / "after", planted(lambda candidate: 1 / seconds(candidate)))
    after = load_view(tmp_path / "after")
    were = same_kernels(before, after.tree)
    assert sorted(old.id for old in were) == list(best_lineages(before.folder, 5))
    for old, new in zip(were, after.tree.nodes, strict=True):
        assert (new.parent is None) == (old.parent is None)
        if new.parent is not None:
            assert were[new.parent].id == old.parent
            assert before.tree.made_by(old) == after.tree.made_by(new)
    assert search_result.answer.node == 0
    assert (tmp_path / "after" / "best" / "kernel.cu").read_text() == kernel(*START).source
    assert after.manifest.configuration.replayed == str(before.folder.path.resolve())


def test_a_failure_is_shown_and_what_is_below_it_is_judged(before: View, tmp_path: Path) -> None:
    second = before.tree.lineage(before.best.id)[1]
    refused = kernel_of(before, second).identity

    def judged(candidate: Kernel) -> Evaluation:
        if candidate.identity == refused:
            return Evaluation(Outcome.TIMEOUT, Source.MEASURED, "over 10 s")
        return planted(seconds)(candidate)

    search_result, _ = again(before, tmp_path / "after", judged)
    were = same_kernels(before, search_result.tree)
    failed = [node for node in search_result.tree.nodes if node.outcome is not Outcome.OK]
    assert [(were[node.id].id, node.outcome) for node in failed] == [(second, Outcome.TIMEOUT)]
    assert sorted(old.id for old in were) == list(best_lineages(before.folder, 5))
    assert search_result.answer.node is not None
    assert search_result.tree.nodes[search_result.answer.node].kernel.source == before.best.kernel.source


def test_without_a_baseline_nothing_else_is_judged(before: View, tmp_path: Path) -> None:
    def broken(_: Kernel) -> Evaluation:
        return Evaluation(Outcome.BUILD_ERROR, Source.MEASURED, "no such target")

    search_result, executor = again(before, tmp_path / "after", broken)
    assert search_result.stop_reason is StopReason.NO_BASELINE
    assert "no such target" in search_result.problem
    assert len(executor.judged) == 1


def test_an_interruption_keeps_what_was_measured(before: View, tmp_path: Path) -> None:
    search_result, executor = again(before, tmp_path / "after", planted(seconds), stop_after=3)
    tree = read_tree(tmp_path / "after" / "journal.jsonl")
    assert search_result.stop_reason is StopReason.INTERRUPTED
    assert 3 <= len(executor.judged) < len(best_lineages(before.folder, 5))
    assert sum(node.evaluation is not None for node in tree.nodes) == len(executor.judged)
    assert (tmp_path / "after" / "best" / "answer.json").exists()


def test_a_run_without_a_good_node_is_a_sentence(tmp_path: Path, task: Path) -> None:
    run = searched(
        tmp_path / "quarantined", task, InProcess(judged_by=lambda k: replace(judge(k), quarantine="x"))
    )
    with pytest.raises(RunError, match="no kernel that passed every guard"):
        best_lineages(run.folder, 5)
    run.folder.journal.write_bytes(b"")
    with pytest.raises(RunError, match="no evaluation yet"):
        best_lineages(run.folder, 5)


def same_kernels(before: View, after: Tree) -> list[Node]:
    """For each node of the later run the one that had its kernel."""
    known = {node.kernel.source: node for node in before.tree.nodes}
    return [known[node.kernel.source] for node in after.nodes]


def kernel_of(run: View, node: int) -> Kernel:
    return Kernel(run.source(node))
