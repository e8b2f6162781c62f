"""The commands as a user types them, on a task that takes a second to search."""

from __future__ import annotations

import ast
import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from click.testing import CliRunner, Result

from mctskernel.cli import main
from mctskernel.tasks import builtin_tasks
from mctskernel.tree.journal import SCHEMA_VERSION
from tests.conftest import KERNEL, WriteTask


def mctskernel(*words: str | Path) -> Result:
    """A command's result; an exception that isn't an exit is a traceback in front of a user, so it fails."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, made by the command itself."""
    folder = tmp_path_factory.mktemp("searched")
    mctskernel("new-task", folder / "task")
    result = mctskernel(
        "search",
        folder / "task",
        "--device",
        "model",
        "--budget",
        "8",
        "--workers",
        "1",
        "--out",
        folder / "run",
    )
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_search_tells_its_story(run: Path) -> None:
    assert (run / "best" / "kernel.cu").is_file()
    assert "modelled" in (run / "best" / "trajectory.md").read_text()


def test_show_tells_what_binds_the_kernel_and_that_it_is_modelled(run: Path) -> None:
    result = mctskernel("show", run)
    assert result.exit_code == 0
    assert "modelled" in result.stdout
    assert "starting kernel" in result.stdout


@pytest.mark.parametrize("use", ["order", "filter"])
def test_a_search_with_a_surrogate_keeps_its_predictions(tmp_path: Path, small_task: Path, use: str) -> None:
    run = tmp_path / "run"
    words = ("--device", "model", "--budget", "4", "--workers", "1", "--surrogate", use, "--out", run)
    result = mctskernel("search", small_task, *words)
    assert result.exit_code == 0, result.output
    nodes = json.loads(mctskernel("export", run).stdout)["nodes"]
    # The model agrees with itself.
    assert any(node["predicted_seconds"] == pytest.approx(node["seconds"]) for node in nodes[1:])
    assert "Predicted: " in mctskernel("show", run, "--node", "1").stdout
    assert mctskernel("resume", run, "--budget", "5").exit_code == 0


def test_a_search_that_rolls_out_keeps_what_it_promised_itself(tmp_path: Path, small_task: Path) -> None:
    run = tmp_path / "run"
    words = ("--device", "model", "--budget", "3", "--workers", "1", "--surrogate", "order", "--out", run)
    result = mctskernel("search", small_task, *words, "--policy", "rollout=sampled")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()[1:]]
    rollouts = [event for event in events if event["event"] == "rolled-out"]
    assert rollouts
    # The model prices whatever the rules propose.
    assert all(step["prediction"]["gain"] > 0 for event in rollouts for step in event["steps"])


def test_show_one_node(run: Path) -> None:
    result = mctskernel("show", run, "--node", "1")
    assert result.exit_code == 0
    assert "Cost by stage" in result.stdout
    assert mctskernel("show", run, "--node", "999").exit_code == 4


def test_best_prints_nothing_but_the_source(run: Path) -> None:
    assert mctskernel("best", run).stdout == (run / "best" / "kernel.cu").read_text()


def test_best_can_be_a_module_that_stands_alone(run: Path) -> None:
    module = ast.parse(mctskernel("best", run, "--standalone").stdout)
    imported = {each.name for node in ast.walk(module) if isinstance(node, ast.Import) for each in node.names}
    assert imported == {"functools", "torch"}
    assert [node.name for node in module.body if isinstance(node, ast.FunctionDef)][:2] == [
        "extension",
        "run",
    ]


def test_export_json_has_the_documented_fields(run: Path) -> None:
    tree = json.loads(mctskernel("export", run).stdout)
    assert len(tree["nodes"]) == 8
    wanted = {"id", "parent", "edit", "outcome", "seconds", "speedup", "reward", "terms", "visits", "value"}
    assert all(wanted <= node.keys() for node in tree["nodes"])
    assert [node["id"] for node in tree["nodes"]] == list(range(8))
    assert all(node["outcome"] for node in tree["nodes"])


def test_export_csv_and_graphml_read_back(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(mctskernel("export", run, "--format", "csv").stdout)))
    graph = nx.parse_graphml(mctskernel("export", run, "--format", "graphml").stdout)
    assert len(rows) == graph.number_of_nodes() == 8


def test_resume_goes_on_to_a_larger_budget(run: Path) -> None:
    before = json.loads(mctskernel("export", run).stdout)["nodes"]
    result = mctskernel("resume", run, "--budget", "10")
    assert result.exit_code == 0, result.output
    after = json.loads(mctskernel("export", run).stdout)["nodes"]
    assert len(after) == 10
    assert [n["kernel"] for n in after[:8]] == [n["kernel"] for n in before]


def test_the_same_seed_gives_the_same_tree(tmp_path: Path, write_task: WriteTask) -> None:
    trees = []
    for name in ("one", "two"):
        arguments = ("--device", "model", "--budget", "6", "--workers", "1", "--out", tmp_path / name)
        assert mctskernel("search", write_task(), *arguments).exit_code == 0
        exported = json.loads(mctskernel("export", tmp_path / name).stdout)
        trees.append([{**node, "evaluation_seconds": None, "log_blob": None} for node in exported["nodes"]])
    assert trees[0] == trees[1]


def test_tasks_lists_the_built_in_ones() -> None:
    output = mctskernel("tasks").stdout
    assert all(name in output for name in builtin_tasks())


def test_every_command_has_a_help_page() -> None:
    names = ("search", "resume", "show", "best", "export", "tasks", "new-task", "check", "doctor")
    assert all(name in mctskernel("--help").stdout for name in names)
    assert "Exit codes" in mctskernel("--help").stdout
    for name in names:
        assert mctskernel(name, "--help").exit_code == 0


def test_doctor_finds_what_a_search_needs() -> None:
    result = mctskernel("doctor")
    assert result.exit_code == 0
    assert "NVRTC" in result.stdout


Damage = Callable[[Path], None]


def truncate(path: Path) -> None:
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], lines[2][:20] + b"\n", *lines[3:]]))


def newer(path: Path) -> None:
    journal = path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"version":%d' % SCHEMA_VERSION, b'"version":7', 1))


def empty(path: Path) -> None:
    (path / "journal.jsonl").write_bytes(b"not a journal\n")


@pytest.mark.parametrize(
    ("damage", "says"), [(truncate, "line 3"), (newer, "version 7"), (empty, "isn't a journal")]
)
@pytest.mark.parametrize("command", ["show", "best", "export", "resume"])
def test_a_damaged_journal_is_a_sentence(
    run: Path, tmp_path: Path, damage: Damage, says: str, command: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damage(copy)
    before = (copy / "journal.jsonl").read_bytes()
    result = mctskernel(command, copy)
    assert result.exit_code == 4
    assert says in result.stderr
    assert "journal.jsonl" in result.stderr
    assert (copy / "journal.jsonl").read_bytes() == before


GREEDY = ("softmax", "--surrogate", "filter", "--strategy", "greedy")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("search", "--budget", "0"), 2, "budget"),
        (("search", "--budget", "-1"), 2, "budget"),
        (("search", "--workers", "0"), 2, "workers"),
        (("search", "--strategy", "guess"), 2, "best-of-n"),
        (("search", "--exploration", "nan"), 2, "exploration"),
        (("search", "--policy", "patience"), 2, "NAME=VALUE"),
        (("search", "--policy", "sellection=uct"), 2, "one of strategy, selection,"),
        (("search", "--policy", "widening=none"), 2, "progressive"),
        (("search", "softmax", "--policy", "rollout=long"), 2, "sampled"),
        (("search", "softmax", "--policy", "rollout=sampled"), 2, "--surrogate order"),
        (("search", *GREEDY, "--policy", "rollout=greedy"), 2, "--strategy mcts"),
        (("search", "nothing"), 3, "neither a folder"),
        (("search", "sofmax"), 3, "softmax"),
        (("check", "nothing"), 3, "neither a folder"),
        (("show", "nowhere"), 4, "is not a run"),
        (("best", "nowhere"), 4, "is not a run"),
        (("export", "nowhere"), 4, "is not a run"),
        (("resume", "nowhere"), 4, "is not a run"),
        (("frobnicate",), 2, "frobnicate"),
    ],
)
def test_bad_input_is_a_sentence(arguments: tuple[str, ...], code: int, says: str) -> None:
    result = mctskernel(*arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("replaced", "code", "says"),
    [
        ({"reference": "def reference(x):\n    raise KeyError('oops')\n"}, 3, "oops"),
        ({"reference": "def reference(x):\n    return x[:-1]\n"}, 3, "shape"),
        ({"reference": "import nothing_like_this\n"}, 3, "nothing_like_this"),
        ({"kernel": None}, 3, "kernel.cu is missing"),
        ({"toml": "name = "}, 3, "not valid TOML"),
        ({"kernel": KERNEL.replace("2.0f * x[i]", "2.0f * y[i]")}, 3, "build error"),
        ({"kernel": KERNEL.replace("if (i < n) {", "{")}, 3, "past the end of x"),
        ({"kernel": KERNEL.replace("out[i] = 2.0f * x[i];", "")}, 3, "never written"),
        ({"kernel": KERNEL.replace("2.0f * x[i]", "0.0f / 0.0f")}, 3, "wrong result"),
        ({"kernel": KERNEL.replace("if (i < n) {", "while (n > 0) {}\n    if (i < n) {")}, 3, "timeout"),
        ({"kernel": KERNEL.replace('block = ["BLOCK"]', "block = [2048]")}, 3, "it must be from 1 to 1024"),
        ({"kernel": KERNEL.replace("ceil_div(n, BLOCK)", "-n")}, 3, "grid"),
    ],
)
def test_a_bad_task_is_a_sentence(
    tmp_path: Path, write_task: WriteTask, replaced: dict[str, str | None], code: int, says: str
) -> None:
    result = mctskernel(
        "search", write_task(**replaced), "--device", "model", "--budget", "3", "--out", tmp_path / "run"
    )
    assert result.exit_code == code, result.output
    assert says in result.stderr, result.stderr


def test_an_output_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path, write_task: WriteTask) -> None:
    (tmp_path / "file").write_text("")
    result = mctskernel("search", write_task(), "--budget", "2", "--out", tmp_path / "file" / "run")
    assert result.exit_code == 4
    assert "can't be used" in result.stderr


def test_a_run_on_another_gpu_is_not_mixed(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "run.json").read_text())
    manifest["fingerprint"]["gpu"] = "another"
    (copy / "run.json").write_text(json.dumps(manifest))
    result = mctskernel("resume", copy, "--budget", "20")
    assert result.exit_code == 4
    assert "another" in result.stderr
