"""Devices that misbehave, importable by worker processes."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `fake_devices`; its classes and functions are openers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "profiling"))
    return importlib.import_module("fake_devices")
