"""What starts the searches that faults meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mctskernel.experiments.fault_injection.subjects import Starter


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    """Started once: it imports everything."""
    opened = Starter()
    yield opened
    opened.close()
