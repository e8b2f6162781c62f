"""Searches with a memory: what is known at the beginning stays with the run, and no memory ends a search."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.command import mctskernel


def search(task: Path, run: Path, *words: str | Path, **environment: str) -> Result:
    device = ("--device", "model", "--workers", "1", "--budget", "4", "--strategy", "mcts")
    return mctskernel("search", task, *device, "--out", run, *words, **environment)


def priors(run: Path) -> dict[str, float]:
    lines = (run / "journal.jsonl").read_text().splitlines()[1:]
    first = next(event for event in map(json.loads, lines) if event["event"] == "proposed")
    return {edit["title"]: edit.get("prior", 1.0) for edit in first["edits"]}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, small_task: Path) -> Path:
    """A folder with a first run and the memory that it made."""
    folder = tmp_path_factory.mktemp("memory")
    result = search(small_task, folder / "run", "--memory", folder / "memory")
    assert result.exit_code == 0, result.output
    return folder


def test_a_search_is_told_what_the_one_before_found(first: Path, tmp_path: Path, small_task: Path) -> None:
    memory = shutil.copytree(first / "memory", tmp_path / "memory")
    assert json.loads((first / "run" / "memory.json").read_text())["experiences"] == []
    frozen = tmp_path / "frozen.json"
    frozen.write_text(mctskernel("memory", "show", "--json", "--folder", memory).stdout)

    assert search(small_task, tmp_path / "told", "--memory", memory).exit_code == 0
    known = json.loads((tmp_path / "told" / "memory.json").read_text())
    assert known == json.loads(frozen.read_text())
    assert sum(each["experience"]["tried"] for each in known["experiences"]) == 3
    told, untold = priors(tmp_path / "told"), priors(first / "run")
    assert told.keys() == untold.keys()
    assert told != untold
    assert len(list(memory.iterdir())) == 2

    # Repeated from the snapshot, whatever was remembered since.
    assert search(small_task, tmp_path / "again", "--memory", frozen).exit_code == 0
    assert priors(tmp_path / "again") == told
    assert frozen.read_text() == mctskernel("memory", "show", "--json", "--folder", first / "memory").stdout

    # Resumed with what it was told, and the answer is there although nothing can be remembered any more.
    before = (tmp_path / "told" / "memory.json").read_bytes()
    shutil.rmtree(memory)
    memory.write_bytes(b"damaged")
    resumed = mctskernel("resume", tmp_path / "told", "--budget", "5")
    assert resumed.exit_code == 0
    assert "This run is not remembered" in resumed.stderr
    assert (tmp_path / "told" / "memory.json").read_bytes() == before


def test_without_a_memory_nothing_is_written_anywhere(
    tmp_path: Path, small_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCTSKERNEL_MEMORY", raising=False)
    assert search(small_task, tmp_path / "run", XDG_DATA_HOME=str(tmp_path / "data")).exit_code == 0
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "run" / "memory.json").exists()


def test_a_damaged_memory_is_a_sentence_before_anything_is_paid_for(tmp_path: Path, small_task: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "damaged.json").write_bytes(b"damaged" * 1000)
    result = search(small_task, tmp_path / "run", MCTSKERNEL_MEMORY=str(tmp_path / "memory"))
    assert result.exit_code == 4
    assert "damaged.json can't be used" in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_commands_of_the_memory(first: Path, tmp_path: Path) -> None:
    home = {"XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "200"}
    assert "Nothing is remembered" in mctskernel("memory", "show", **home).stdout
    for _ in range(2):
        assert "3 edits" in mctskernel("memory", "remember", first / "run", **home).stdout
    shown = mctskernel("memory", "show", **home).stdout
    assert "modelled" in shown
    assert "cuda, sm_90" in shown
    (kept,) = (tmp_path / "data" / "mctskernel" / "memory").iterdir()
    kept.unlink()
    assert "Nothing is remembered" in mctskernel("memory", "show", **home).stdout
    assert mctskernel("memory", "remember", tmp_path, **home).exit_code == 4
