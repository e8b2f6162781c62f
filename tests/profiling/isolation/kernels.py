"""What these tests need of the kernel."""

import pytest

from mctskernel.profiling.isolation import landlock
from mctskernel.profiling.isolation.kernel_calls import RefusedByKernelError, architecture


def _newest_landlock() -> bool:
    try:
        return landlock.abilities().signals
    except RefusedByKernelError:
        return False


NEEDS_LANDLOCK = pytest.mark.skipif(
    architecture() is None or not _newest_landlock(), reason="needs Linux 6.12 or newer with Landlock"
)
