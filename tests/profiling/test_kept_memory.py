"""Memory that is kept for what is allocated next."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource
import numpy as np
{first}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(4):
        arrays = [np.ones(1 << 17) for _ in range(16)]
        del arrays
work()
before = faults()
work()
print(faults() - before)
"""
KEEP = "from mctskernel.profiling.processes.kept_memory import keep_freed_memory; keep_freed_memory()"


@pytest.mark.skipif(sys.platform != "linux", reason="It is about glibc.")
def test_what_was_freed_is_not_cleared_again_for_the_next_array() -> None:
    faults = {
        first: int(
            subprocess.run(
                [sys.executable, "-c", COUNT.format(first=first)], capture_output=True, check=True
            ).stdout
        )
        for first in ("", KEEP)
    }
    assert faults[KEEP] < 50
    assert faults[KEEP] < faults[""] / 4
