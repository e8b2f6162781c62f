"""Whatever the rules propose for the built-in tasks builds and verifies, held-out shapes included.

This samples chains of edits; `python -m mctskernel.experiments.check_rules` runs more of them.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

import mctskernel.tasks
from mctskernel.core.proposer import ProposalRequest
from mctskernel.core.task_file import load_task
from mctskernel.edits.patch import apply
from mctskernel.edits.proposer import RuleProposer
from mctskernel.profiling.model_device import ModelDevice

FOLDER = Path(mctskernel.tasks.__path__[0])
TASKS = sorted(path.parent.name for path in FOLDER.glob("*/task.toml"))
CHAIN = 2


@pytest.mark.parametrize("name", TASKS)
def test_a_chain_of_edits_stays_correct(name: str) -> None:
    task = load_task(FOLDER / name)
    device, proposer = ModelDevice(task), RuleProposer()
    kernel, evaluation = task.starting_kernel, device.evaluate(task.starting_kernel)
    assert evaluation.ok
    rng, path = np.random.default_rng(zlib.crc32(name.encode())), list[str]()
    for _ in range(CHAIN):
        edits = proposer.propose(ProposalRequest(task, kernel, evaluation)).edits
        categories = sorted({edit.category for edit in edits})
        category = categories[rng.integers(len(categories))]
        among = [edit for edit in edits if edit.category is category]
        edit = among[rng.integers(len(among))]
        kernel = apply(kernel, edit)
        path.append(edit.title)
        evaluation = device.evaluate(kernel)
        assert evaluation.ok, f"after {path}: {evaluation.outcome}: {evaluation.message}\n{kernel.source}"
    failed = [check for check in device.final_check(kernel) if not check.passed]
    assert not failed, f"after {path}: {failed[0]}\n{kernel.source}"
