"""`mctskernel search --executor ray` as a user has it, in a cluster that is running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [("--device", "model"), ("--device", "own_parts:open_lines", "--strategy", "own_parts:Newest")]
)
def test_a_search_in_a_cluster(
    nodes: Cluster, parts: tuple[str, ...], small_task: Path, tmp_path: Path
) -> None:
    options = (*parts, "--executor", "ray", "--ray-address", nodes.address, "--workers", "1", "--budget", "2")
    done = subprocess.run(
        (sys.executable, "-m", "mctskernel", "search", small_task, *options, "--out", tmp_path / "run"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"in the Ray cluster at {nodes.address}" in done.stderr
    assert "Stopped: the budget is spent." in done.stdout
