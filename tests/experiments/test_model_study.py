"""A study in rounds: what is asked, what bad replies come to, and that arms differ in what they see alone."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Outcome
from mctskernel.core.executor import Executor
from mctskernel.experiments import model_study
from mctskernel.experiments.model_study import main
from mctskernel.run import RunFolder, exchanges_of
from mctskernel.tree.journal import read_tree
from tests import landscape


def study(*words: object) -> str:
    result = CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def out(tmp_path: Path, small_task: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of a task whose kernels are points of the landscape; its starts are evaluated."""

    @contextmanager
    def opening(_spec: DeviceSpec, _workers: int) -> Iterator[Executor]:
        yield landscape.InProcess(2)

    monkeypatch.setattr(model_study, "open_executor", opening)
    monkeypatch.setattr(model_study, "load_task", lambda folder, _=None: landscape.task(folder))
    monkeypatch.setattr(RunFolder, "load_task", lambda folder: landscape.task(folder.task))
    shutil.copytree(small_task, tmp_path / "bowl")
    folder = tmp_path / "study"
    folder.mkdir()
    study("begin", folder, tmp_path / "bowl", "--device", "model")
    study("tell", folder, "--jobs", 1)
    return folder


def answer(out: Path, name: str, *edits: tuple[str, str]) -> None:
    """Reply to an ask with changes of lines."""
    asked = (out / "asks" / f"{name}.md").read_text()
    blocks = [f"## {new}\n\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n" for old, new in edits]
    node = re.findall(r"^node: (\d+)$", asked, re.M)[-1]
    (out / "replies" / f"{name}.md").write_text(f"node: {node}\n\n" + "\n".join(blocks))


def asks(out: Path) -> set[str]:
    study("ask", out)
    return {file.stem for file in (out / "asks").iterdir()}


def test_rounds_are_asked_answered_and_evaluated(out: Path) -> None:
    assert asks(out) == {"bowl-0-1-first"}
    answer(out, "bowl-0-1-first", ("#define X 1", "#define X 5"), ("#define Y 1", "#define Y 2"))
    study("tell", out)
    arms = ("time", "counters", "diagnosis", "best-of-n", "mixed")
    assert asks(out) == {f"bowl-0-2-{arm}" for arm in arms}
    texts = {arm: (out / "asks" / f"bowl-0-2-{arm}.md").read_text() for arm in arms}
    assert "#define X 5" in texts["diagnosis"]
    assert "#define X 1\n" in texts["best-of-n"], "it knows the start alone"
    assert str((out / "replies" / "bowl-0-2-time.md").resolve()) in texts["time"]
    for arm in arms:
        (line,) = set(re.findall(r"#define Y \d+", texts[arm].partition("## How to answer")[0]))
        answer(out, f"bowl-0-2-{arm}", (line, "#define Y 2"))
    study("tell", out)
    assert asks(out) == set()
    assert study("tell", out).startswith("0 replies are missing"), "nothing is evaluated twice"
    assert study("tell", out, "--validate").count("validated") == len(arms) + 1
    table = study("table", out)
    summary = table.partition("## Against")[0]
    cells = [[each.strip() for each in line.split("|")[1:-1]] for line in summary.splitlines() if "|" in line]
    rows = {arm: row for arm, *row in cells}
    assert rows["diagnosis"][0] == "1"
    assert rows["time"][-1] == "100%"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "The reply is empty."),
        ("I'm sorry, I can't help with that.", "The model refuses"),
        ("node: 0\n\n<<<<<<< SEARCH\n#define X 1\n", "ends before its first edit is whole"),
        ("node: 7\n\n## A\n<<<<<<< SEARCH\n#define X 9\n=======\n>>>>>>> REPLACE\n", "There is no node 7"),
        ('{"node": 0, "edits": [{"title"', "ends before its first edit is whole"),
        ("node: 0\n```python\n@triton.jit\ndef f(): pass\n```\n", "without any __global__ function"),
    ],
)
def test_a_bad_reply_costs_its_round_and_is_told_in_the_next_ask(out: Path, reply: str, said: str) -> None:
    study("ask", out)
    (out / "replies" / "bowl-0-1-first.md").write_text(reply)
    assert said in study("tell", out)
    study("ask", out)
    assert said in (out / "asks" / "bowl-0-2-diagnosis.md").read_text()
    (exchange,) = exchanges_of(RunFolder(out / "runs" / "bowl" / "0" / "diagnosis"))
    assert exchange.reply == reply


def test_a_reply_in_json_is_taken_as_well(out: Path) -> None:
    study("ask", out)
    edit = {"title": "X 5", "patch": [{"search": "#define X 1", "replace": "#define X 5"}]}
    line = msgspec.json.encode({"node": 0, "edits": [edit]})
    (out / "replies" / "bowl-0-1-first.json").write_bytes(line)
    study("tell", out)
    tree = read_tree(RunFolder(out / "runs" / "bowl" / "0" / "first").journal)
    assert [node.outcome for node in tree.nodes] == [Outcome.OK, Outcome.OK]
