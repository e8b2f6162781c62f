"""The story at the end of a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mctskernel.cli.errors import BAD_TASK, INTERRUPTED
from mctskernel.cli.following import conclude
from mctskernel.core.device import DeviceSpec
from mctskernel.core.task_file import load_task
from mctskernel.run import Budget, Configuration, prepare_run, write_manifest
from mctskernel.runner import Conclusion
from mctskernel.runner import conclude as conclude_search
from mctskernel.search import Ending, Search
from mctskernel.tree.journal import Journal
from mctskernel.tree.node import Tree
from mctskernel.tree.policy import Policy
from mctskernel.tree.search import TreeSearch
from tests.conftest import WriteTask
from tests.landscape import InProcess, Neighbours, kernel


@pytest.fixture
def conclusion(tmp_path: Path, write_task: WriteTask) -> Conclusion:
    folder = prepare_run(tmp_path / "run", load_task(write_task(kernel=kernel(1, 1).source)))
    device = DeviceSpec("model", folder.task)
    configuration = Configuration(
        task="double",
        device=device.kind,
        architecture=device.architecture,
        proposer="rules",
        seed=0,
        workers=1,
        budget=Budget(evaluations=4),
        policy=Policy(),
    )
    write_manifest(folder, configuration, {"gpu": "planted"})
    task = folder.load_task()
    with Journal(folder.journal) as journal:
        tree_search = TreeSearch(Tree(), journal, folder.blobs)
        root = tree_search.start(task.starting_kernel, configuration.policy, 0)
        search = Search(
            tree_search, task, Neighbours(), InProcess(), configuration.budget, follow=lambda _: None
        )
        return conclude_search(folder, search, search.run((root,)))


def test_what_the_machine_lacks_is_said_once(
    conclusion: Conclusion, capsys: pytest.CaptureFixture[str]
) -> None:
    conclude(replace(conclusion, remarks=("Counters are forbidden: ask for permission.",)))
    said = capsys.readouterr()
    assert said.err == "mctskernel: Counters are forbidden: ask for permission.\n"
    assert "Stopped: the budget is spent." in said.out


def test_an_interruption_says_how_to_go_on(
    conclusion: Conclusion, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        conclude(replace(conclusion, ending=Ending.INTERRUPTED))
    assert exit_.value.code == INTERRUPTED
    assert f"mctskernel resume {conclusion.folder.path}\n" in capsys.readouterr().out


def test_without_a_baseline_there_is_nothing_but_the_reason(
    conclusion: Conclusion, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        conclude(replace(conclusion, ending=Ending.NO_BASELINE, problem="It doesn't build."))
    assert exit_.value.code == BAD_TASK
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "mctskernel: It doesn't build.\n")
