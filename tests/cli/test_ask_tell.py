"""Asking and telling as another program meets them: commands and lines of JSON."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mctskernel.cli.errors import BAD_RUN, BAD_TASK, INTERRUPTED, USAGE
from mctskernel.core.evaluation import Evaluation
from mctskernel.tree.journal import read_tree
from tests import landscape
from tests.cli.command import mctskernel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[landscape.Opener]:
    return landscape.stand_in(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, small_task: Path, device: list[landscape.Opener]) -> Path:
    """A run that waits for edits."""
    folder = tmp_path / "run"
    begun = mctskernel(
        "search", small_task, "--proposer", "outside", "--device", "model", "--budget", "20", "--out", folder
    )
    assert begun.exit_code == 0, begun.output
    assert f"mctskernel ask {folder}" in begun.stdout
    return folder


def ask(run: Path, count: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in mctskernel("ask", run, "-n", count).stdout.splitlines()]


def reply(asked: dict[str, Any]) -> dict[str, Any]:
    return {"node": asked["node"], "edits": landscape.steps(asked["source"])}


def write_replies(folder: Path, replies: list[dict[str, Any]]) -> Path:
    file = folder / "replies.jsonl"
    file.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return file


def test_a_text_is_asked_and_its_answer_told(run: Path, tmp_path: Path) -> None:
    asked = mctskernel("ask", run, "--text", "--edits", "2").stdout
    assert "Propose 2 different edits" in asked and "def reference" in asked
    (line,) = set(re.findall(r"^#define X -?\d+$", asked, re.M))
    answer = tmp_path / "answer.md"
    answer.write_text(f"node: 0\n\n## X 7\n<<<<<<< SEARCH\n{line}\n=======\n#define X 7\n>>>>>>> REPLACE\n")
    told = mctskernel("tell", run, answer)
    assert told.exit_code == 0, told.output
    assert "node 0: X 7: ok (node 1)" in told.stdout
    answer.write_text("## X 9\nNo node, no edits.\n")
    assert mctskernel("tell", run, answer).exit_code == USAGE


def test_another_program_spends_the_budget(run: Path, tmp_path: Path) -> None:
    while asked := ask(run, 2):
        told = mctskernel("tell", run, write_replies(tmp_path, [reply(each) for each in asked]))
        assert told.exit_code == 0, told.output
        assert told.stdout.count("node ") >= 4 * len(asked)
    assert read_tree(run / "journal.jsonl").evaluations == 20
    assert (run / "best" / "answer.json").is_file()
    again = mctskernel("ask", run)
    assert again.exit_code == 0
    assert again.stdout == ""
    assert "no node needs edits: the budget is spent" in again.stderr


def test_what_is_asked_and_replied_follows_the_schemas(run: Path) -> None:
    (asked,) = ask(run)
    jsonschema.validate(asked, json.loads(mctskernel("ask", "--schema").stdout))
    schema = json.loads(mctskernel("tell", "--schema").stdout)
    jsonschema.validate(reply(asked), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"node": 0, "edits": [{"title": "a", "verdict": "ok"}]}, schema)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (b'{"node": 0, "edits": [{"title": "cut o', "Line 2 is not a reply"),
        (b'{"node": 99, "edits": []}', "no node 99"),
    ],
)
def test_of_a_damaged_file_nothing_is_told(run: Path, tmp_path: Path, damage: bytes, complaint: str) -> None:
    (asked,) = ask(run)
    file = write_replies(tmp_path, [reply(asked)])
    file.write_bytes(file.read_bytes() + damage)
    told = mctskernel("tell", run, file)
    assert told.exit_code == USAGE
    assert complaint in told.stderr
    assert not read_tree(run / "journal.jsonl").nodes[0].edits
    assert ask(run) == [asked]


class Pressed(landscape.InProcess):
    """Somebody presses Ctrl-C while the first kernel is evaluated."""

    def wait(self, timeout: float | None = None) -> list[tuple[int, Evaluation]]:
        if not self.judged:
            os.kill(os.getpid(), signal.SIGINT)
        return super().wait(timeout)


def test_ctrl_c_ends_telling_and_loses_nothing(
    run: Path, tmp_path: Path, device: list[landscape.Opener]
) -> None:
    (asked,) = ask(run)
    file = write_replies(tmp_path, [reply(asked)])
    device.append(lambda: Pressed(1))
    told = mctskernel("tell", run, file)
    assert told.exit_code == INTERRUPTED
    assert "Stopped: interrupted." in told.stdout
    tree = read_tree(run / "journal.jsonl")
    assert len(tree.nodes[0].edits) == 4
    assert 1 < tree.evaluations < 5
    device.pop()
    again = mctskernel("tell", run, file).stdout
    assert "X +1: ok" in again
    assert "X -1: " in again


def test_a_folder_that_is_no_run_and_a_kernel_without_a_time_are_refused(
    run: Path, tmp_path: Path, device: list[landscape.Opener]
) -> None:
    assert mctskernel("ask", tmp_path).exit_code == BAD_RUN
    (run / "journal.jsonl").unlink()
    broken = landscape.judge(landscape.kernel(7, 3))
    device.append(lambda: landscape.InProcess(1, lambda _: broken))
    result = mctskernel("ask", run)
    assert result.exit_code == BAD_TASK
    assert "can't be searched from" in result.stderr


@pytest.mark.slow
def test_the_example_of_the_documentation_takes_part(tmp_path: Path, small_task: Path) -> None:
    script = ROOT / "docs" / "examples" / "outside_proposer.py"
    assert "mctskernel" not in "".join(re.findall(r"^(?:import|from) .*", script.read_text(), re.MULTILINE))
    words = [script, small_task, tmp_path / "run", 3, "--device", "model", "--workers", 1]
    result = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "node 0: BLOCK 64 -> 32: ok" in result.stdout
    assert "Stopped: the budget is spent." in result.stdout
    tree = read_tree(tmp_path / "run" / "journal.jsonl")
    assert {edit.proposer for edit in tree.nodes[0].edits} == {"doubler"}
