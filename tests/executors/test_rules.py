"""Rules in a process of their own propose what they propose here."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import load_task
from mctskernel.edits.proposer import RuleProposer
from mctskernel.executors.rules import RuleProcess
from mctskernel.tasks.builtin import builtin_tasks


@pytest.mark.slow
def test_a_process_proposes_the_same_and_is_not_missed_once_it_is_lost() -> None:
    task = load_task(builtin_tasks()["softmax"])
    request = ProposalRequest(task, task.starting_kernel, Evaluation(Outcome.OK, Source.MEASURED))
    expected = RuleProposer().propose(request)
    assert expected.edits
    with closing(RuleProcess(task, None)) as beside:
        assert beside.propose(request) == expected
        os.kill(beside._process.pid, signal.SIGKILL)
        assert beside.propose(request) == expected
    assert beside.propose(request) == expected
