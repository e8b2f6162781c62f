"""`mctskernel search --executor ray` as a user has it: with a cluster that begins and ends with the search."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

OWN_PARTS = Path(__file__).parents[3] / "docs" / "examples" / "own_parts"
"""A package of a user's, which workers of the cluster import too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [("--device", "model"), ("--device", "own_parts:open_lines", "--strategy", "own_parts:Newest")]
)
def test_a_search_brings_its_own_cluster_and_leaves_nothing_of_it(
    parts: tuple[str, ...], small_task: Path, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="mk-", dir="/tmp") as folder:
        environment = {
            **os.environ,
            "HOME": str(tmp_path),
            "TMPDIR": folder,
            "RAY_ADDRESS": "local",
            "PYTHONPATH": os.pathsep.join((str(OWN_PARTS), os.environ.get("PYTHONPATH", ""))),
            "OPENAI_API_KEY": "sk-not-for-processes",
        }
        options = (*parts, "--executor", "ray", "--workers", "1", "--budget", "2")
        command = (sys.executable, "-m", "mctskernel", "search", str(small_task), *options)
        done = subprocess.run(
            (*command, "--out", str(tmp_path / "run")),
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "a Ray cluster that was started here for this run" in done.stderr
        assert "Stopped: the budget is spent." in done.stdout
        assert list(Path(folder).iterdir()) == []
        assert not [pid for pid in Path("/proc").glob("[0-9]*") if folder in words_of(pid)]


def words_of(process: Path) -> str:
    """What a process was started with."""
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
