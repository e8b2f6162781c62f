"""The commands as a user types them, on a task that takes a second to search."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mctskernel.tasks.builtin import builtin_tasks
from mctskernel.tree.journal import SCHEMA_VERSION
from tests.cli.command import mctskernel, searched
from tests.conftest import KERNEL, TRITON_KERNEL, WriteTask


def exported(run: Path) -> list[dict[str, object]]:
    nodes: list[dict[str, object]] = json.loads(mctskernel("export", run).stdout)["nodes"]
    return nodes


@pytest.fixture(scope="module")
def run(small_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(small_task, tmp_path_factory.mktemp("searched") / "run", 6)


def test_a_search_in_cuda_from_the_task_to_the_answer(run: Path) -> None:
    shown = mctskernel("show", run)
    assert "modelled" in shown.stdout and "starting kernel" in shown.stdout
    assert "Cost by stage" in mctskernel("show", run, 1).stdout
    assert mctskernel("best", run).stdout == (run / "best" / "kernel.cu").read_text()
    nodes = exported(run)
    wanted = {"id", "parent", "edit", "outcome", "seconds", "speedup", "reward", "terms", "visits", "value"}
    assert all(wanted <= node.keys() for node in nodes)
    assert len(nodes) == 6
    page = mctskernel("report", run)
    assert page.exit_code == 0
    assert (run / "best" / "report.html").is_file()


def test_a_search_in_triton(write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task(kernel=None)
    (task / "kernel.py").write_text(TRITON_KERNEL)
    run = searched(task, tmp_path / "run", 3, "--language", "triton")
    assert [node["outcome"] for node in exported(run)] == ["ok"] * 3
    assert "@triton.jit" in mctskernel("best", run).stdout


@pytest.mark.slow
def test_resume_goes_on_and_the_same_seed_gives_the_same_tree(small_task: Path, tmp_path: Path) -> None:
    first, whole = searched(small_task, tmp_path / "a", 3), searched(small_task, tmp_path / "b", 6)
    assert mctskernel("resume", first, "--budget", 6).exit_code == 0
    one, two = ([node["kernel"] for node in exported(each)] for each in (first, whole))
    assert one == two


@pytest.mark.slow
def test_the_best_kernels_are_evaluated_on_another_device(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    words = ("--device", "model", "--architecture", "A100", "--nodes", 2, "--workers", 1, "--out", out)
    result = mctskernel("resume", run, *words)
    assert result.exit_code == 0, result.output
    assert "modelled" in result.stdout
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["configuration"]["replayed"] == str(run.resolve())
    count = len(exported(out))
    assert mctskernel("resume", out, "--budget", count + 1).exit_code == 0
    assert len(exported(out)) == count + 1


def test_another_device_needs_a_gpu_or_an_empty_folder(run: Path) -> None:
    taken = mctskernel("resume", run, "--device", "model", "--out", run)
    assert (taken.exit_code, "already holds something" in taken.stderr) == (4, True)


def test_a_run_on_another_gpu_is_not_mixed(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "run.json").read_text())
    manifest["fingerprint"]["gpu"] = "another"
    (copy / "run.json").write_text(json.dumps(manifest))
    result = mctskernel("resume", copy, "--budget", 20)
    assert (result.exit_code, "another" in result.stderr) == (4, True)


def test_tasks_lists_the_built_in_ones() -> None:
    output = mctskernel("tasks").stdout
    assert all(name in output for name in builtin_tasks())


def test_doctor_finds_what_a_search_needs() -> None:
    result = mctskernel("doctor")
    assert (result.exit_code, "NVRTC" in result.stdout) == (0, True)


def cut(path: Path) -> None:
    journal = path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], lines[2][:20] + b"\n", *lines[3:]]))


def newer(path: Path) -> None:
    journal = path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"version":%d' % SCHEMA_VERSION, b'"version":77', 1))


@pytest.mark.parametrize(("damage", "says"), [(cut, "line 3"), (newer, "version 77")])
@pytest.mark.parametrize("command", ["show", "best", "export", "resume"])
def test_a_damaged_journal_is_a_sentence(
    run: Path, tmp_path: Path, damage: Callable[[Path], None], says: str, command: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    damage(copy)
    before = (copy / "journal.jsonl").read_bytes()
    result = mctskernel(command, copy)
    assert result.exit_code == 4
    assert says in result.stderr
    assert (copy / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"reference": "def reference(x):\n    raise KeyError('oops')\n"}, "oops"),
        ({"reference": "def reference(x):\n    return x[:-1]\n"}, "shape"),
        ({"reference": "import nothing_like_this\n"}, "nothing_like_this"),
        ({"kernel": None}, "kernel.cu is missing"),
        ({"toml": "name = "}, "not valid TOML"),
        ({"kernel": KERNEL.replace("2.0f * x[i]", "2.0f * y[i]")}, "build error"),
        ({"kernel": KERNEL.replace("if (i < n) {", "{")}, "past the end of x"),
        ({"kernel": KERNEL.replace("2.0f * x[i]", "0.0f / 0.0f")}, "wrong result"),
        ({"kernel": KERNEL.replace('block = ["BLOCK"]', "block = [2048]")}, "it must be from 1 to 1024"),
    ],
)
def test_a_bad_task_is_a_sentence(
    tmp_path: Path, write_task: WriteTask, replaced: dict[str, str | None], says: str
) -> None:
    words = ("--device", "model", "--budget", "3", "--workers", "1", "--out", tmp_path / "run")
    result = mctskernel("search", write_task(**replaced), *words)
    assert result.exit_code == 3, result.output
    assert says in result.stderr, result.stderr
