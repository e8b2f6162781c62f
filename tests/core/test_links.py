"""Folders that hold links to elsewhere."""

import os
from pathlib import Path

import pytest

from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.core.user_errors import RunError
from mctskernel.run import open_run
from tests.conftest import KERNEL, WriteTask
from tests.synthetic_run import SyntheticRun, timed


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's that parses as whatever is asked for."""
    path = tmp_path / "secret"
    path.write_text(KERNEL)
    return path


@pytest.mark.parametrize("name", ["kernel.cu", "reference.py"])
def test_a_task_reads_nothing_outside_of_its_folder(write_task: WriteTask, secret: Path, name: str) -> None:
    folder = write_task()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(TaskError, match=f"{name} is a link that leads out"):
        load_task(folder)


def test_a_task_may_be_reached_by_a_link_and_hold_links_to_itself(
    write_task: WriteTask, tmp_path: Path
) -> None:
    folder = write_task()
    (folder / "kernel.cu").rename(folder / "mine.cu")
    (folder / "kernel.cu").symlink_to("mine.cu")
    (tmp_path / "link").symlink_to(folder)
    assert load_task(tmp_path / "link").starting_kernel.source


def test_a_pipe_is_not_waited_for(write_task: WriteTask) -> None:
    folder = write_task(kernel=None)
    os.mkfifo(folder / "kernel.cu")
    with pytest.raises(TaskError, match="not a file"):
        load_task(folder)


@pytest.mark.parametrize(
    "name", ["journal.jsonl", "task", "task/kernel.cu", "blobs/*", "best", "journal.jsonl.damaged"]
)
def test_a_run_with_links_to_elsewhere_is_refused(write_task: WriteTask, tmp_path: Path, name: str) -> None:
    told = SyntheticRun(tmp_path / "run", write_task())
    told.edits(0, ("an edit", timed(50.0)))
    run, elsewhere = told.folder.path, tmp_path / "elsewhere"
    assert open_run(run)
    planted = next(run.glob(name), run / name)
    if planted.exists():
        planted.rename(elsewhere)
    elif name == "best":
        elsewhere.mkdir()
    planted.symlink_to(elsewhere)
    with pytest.raises(RunError, match="leads out of the run's folder"):
        open_run(run)
