"""What a process that runs candidates is given."""

import site
import subprocess
import sys
from pathlib import Path

from mctskernel.profiling.processes import child_process


def test_a_worker_has_a_home_of_its_own_and_finds_the_packages_of_its_user(tmp_path: Path) -> None:
    code = "import os, site; print(os.environ['HOME'], site.getuserbase())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=child_process.worker_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(tmp_path), site.getuserbase()]
