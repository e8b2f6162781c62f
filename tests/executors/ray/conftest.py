"""A Ray cluster of several nodes on this machine, which no other test and no user of it can meet."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

TESTS = Path(__file__).parents[2]
OWN_PARTS = TESTS.parent / "docs" / "examples" / "own_parts"  # a package of a user's

IMPORTABLE = (TESTS / "profiling", TESTS / "executors", Path(__file__).parent)
"""Where fake devices are; what evaluators open in their processes is imported there."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A cluster whose head has two CPUs and no GPU: tests add what else they need, and take it away again."""
    # Short, for the names of sockets.
    folder = tempfile.mkdtemp(prefix="mk-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("TMPDIR", folder)
        patch.setenv("CUDA_TEST_FOLDER", folder)
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join((*map(str, (*IMPORTABLE, OWN_PARTS)), os.environ.get("PYTHONPATH", ""))),
        )
        for path in IMPORTABLE:
            patch.syspath_prepend(str(path))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        try:
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
