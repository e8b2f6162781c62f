"""Locks of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.profiling.gpu import lock as locks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the locks of this test are, in this process."""
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    return tmp_path
