"""What every search on a server has: a token, and a task."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.executors.remote.address import TOKEN_VARIABLE
from tests.executors.careless_server import TOKEN


@pytest.fixture(autouse=True)
def a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "task.toml").write_bytes(b'name = "x"\n')
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    return folder
