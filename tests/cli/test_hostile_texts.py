"""Every command, given a task, a run and files whose texts and names would give a terminal orders."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main, plain_console
from mctskernel.cli.plain_console import plain
from mctskernel.core.evaluation import Outcome
from mctskernel.core.task_file import load_task
from mctskernel.problems.problem import PROBLEM_FILE
from tests.conftest import KERNEL, REFERENCE, TASK_TOML
from tests.synthetic_run import EXCHANGE, SyntheticRun, failed, timed

ORDERS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eowned"
"""A title, an empty screen, a colour by one byte, and everything after it backwards."""

Words = Sequence[str | Path]


class Hostile:
    """A folder of hostile things; `broken` is a task that can't be used, and says why in the file's own words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = self._task(f"task{ORDERS}")
        self.broken = self._task(f"broken{ORDERS}", reference=f"raise ValueError({ORDERS!r})\n")
        self.run = folder / f"run{ORDERS}"
        told = SyntheticRun(self.run, self.task)
        made = told.edits(0, (f"an edit {ORDERS}", timed(50.0)), exchange=EXCHANGE)
        told.edits(made[0], (f"another {ORDERS}", failed(Outcome.WRONG_RESULT)))
        shutil.copytree(self.run, folder / "second")
        self.second = folder / "second"
        self.torn = folder / f"torn{ORDERS}"
        shutil.copytree(self.run, self.torn)
        (self.torn / "run.json").write_text(f'{{"{ORDERS}": 1}}')
        self.file = folder / f"file{ORDERS}.cu"
        self.file.write_text(f"{ORDERS} __global__ void k(")
        self.problem_run = folder / f"problem{ORDERS}"
        shutil.copytree(self.run, self.problem_run)
        (self.problem_run / "task" / PROBLEM_FILE).write_text(
            json.dumps({"benchmark": ORDERS, "name": ORDERS})
        )
        self.configuration = folder / f"ablation{ORDERS}.toml"
        self.configuration.write_text(f"title = {json.dumps(ORDERS)}\nbaseline = {json.dumps(ORDERS)}\n")
        self.corpus = folder / "corpus"
        (self.corpus / "cuda" / "cheats").mkdir(parents=True)
        (self.corpus / "cuda" / "cheats" / "entries.toml").write_text(f"[owned_{ORDERS}]\n", "utf-8")
        (self.corpus / "cuda" / "cheats" / f"owned{ORDERS}.cu").write_text(ORDERS)

    def _task(self, name: str, reference: str = REFERENCE) -> Path:
        made = self.folder / name
        made.mkdir()
        summary = "".join(f"\\u{ord(letter):04x}" for letter in ORDERS)
        toml = TASK_TOML.replace('"Twice the input."', f'"Twice the input.{summary}"')
        commented = KERNEL.replace("#define BLOCK", f"// {ORDERS}\n#define BLOCK", 1)
        for file, text in (("task.toml", toml), ("reference.py", reference), ("kernel.cu", commented)):
            (made / file).write_text(text, "utf-8")
        return made


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    return Hostile(tmp_path_factory.mktemp("hostile"))


TRIALS: tuple[tuple[str, Callable[[Hostile], Words]], ...] = (
    ("search", lambda given: (given.broken, "--device", "model", "--budget", "1")),
    ("search", lambda given: (f"nowhere{ORDERS}",)),
    ("resume", lambda given: (given.torn,)),
    ("resume", lambda given: (given.folder / ORDERS,)),
    ("ask", lambda given: (given.torn,)),
    ("tell", lambda given: (given.run, given.file)),
    ("mcp", lambda given: ("--runs", given.run, ORDERS)),
    ("watch", lambda given: (given.run,)),
    ("watch", lambda given: (given.torn,)),
    ("show", lambda given: (given.run,)),
    ("show", lambda given: (given.run, "1")),
    ("show", lambda given: (given.run, "0", "1")),
    ("show", lambda given: (given.run, "1", "--diff")),
    ("show", lambda given: (given.run, "0", "--json")),
    ("show", lambda given: (given.torn, "--ncu")),
    ("compare", lambda given: (given.run, given.second)),
    ("compare", lambda given: (given.run, given.second, "--json")),
    ("evaluate", lambda given: (given.broken, "--device", "model")),
    ("best", lambda given: (given.run,)),
    ("best", lambda given: (given.torn,)),
    ("best", lambda given: (given.problem_run, "--as", "solution")),
    ("report", lambda given: (given.run, "-o", given.folder / f"page{ORDERS}.html")),
    ("report", lambda given: (given.run, "--figure", "tree", "-o", given.folder / f"plot{ORDERS}")),
    ("export", lambda given: (given.run,)),
    ("export", lambda given: (given.run, "--format", "dot")),
    ("tasks", lambda given: ()),
    ("new-task", lambda given: (given.folder / "drafted", "--from", given.file)),
    ("new-task", lambda given: (given.folder / f"new{ORDERS}",)),
    (
        "generate",
        lambda given: (f"add {ORDERS}", "--reference", given.file, "--out-task", given.folder / ORDERS),
    ),
    ("check", lambda given: (given.broken,)),
    ("check", lambda given: (given.folder / ORDERS, given.file)),
    ("bench", lambda given: ("--out", given.folder / f"bench{ORDERS}")),
    ("bench", lambda given: (given.folder, "--levels", ORDERS, "--out", given.folder / f"bench{ORDERS}")),
    ("ablate", lambda given: (given.configuration, "--out", given.folder / f"swept{ORDERS}")),
    ("ablate", lambda given: (given.folder / ORDERS,)),
    ("gauntlet", lambda given: ("--corpus", given.corpus, "--device", "model")),
    ("doctor", lambda given: ()),
)


def invoked(command: str, words: Words) -> Result:
    return CliRunner().invoke(main, [command, *(str(word) for word in words)])


def test_no_command_is_left_out() -> None:
    assert {name for names in main.groups.values() for name in names} == dict(TRIALS).keys()


@pytest.mark.parametrize(("command", "words"), TRIALS)
def test_no_command_passes_orders_on(
    hostile: Hostile, command: str, words: Callable[[Hostile], Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_console, "on_terminal", lambda: True)
    monkeypatch.chdir(hostile.folder)
    result = invoked(command, words(hostile))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.output.strip()
    assert plain(result.stdout) == result.stdout
    assert plain(result.stderr) == result.stderr


def test_a_file_gets_a_kernel_as_it_is(hostile: Hostile) -> None:
    best = invoked("best", (hostile.run,)).stdout
    assert ORDERS in best
    assert "#define MADE" in best


def test_a_task_s_own_words_are_shown_harmless(hostile: Hostile) -> None:
    assert load_task(hostile.task).summary.endswith(ORDERS)
    result = invoked("check", (hostile.broken,))
    assert "owned" in result.output
    assert "\N{REPLACEMENT CHARACTER}" in result.output


def test_a_defect_s_traceback_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console.complain(ValueError, ValueError(ORDERS), None)
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert plain(said) == said
