"""Devices that misbehave, importable by worker processes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from mctskernel.profiling.gpu import lock as locks


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `fake_devices`; its classes and functions are openers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "profiling"))
    return importlib.import_module("fake_devices")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the locks of this test are, in this process."""
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    return tmp_path
