"""Where the search of a search-space cache starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.core.kernel import Language
from mctskernel.core.space import SpaceError, values_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling.spaces import read_space
from mctskernel.tasks.space import choose_start
from tests import spaces


def test_the_first_drawn_configuration_with_a_time_is_the_start() -> None:
    starts = [choose_start(spaces.bowl(), seed) for seed in range(20)]
    assert all(each.entry.seconds is not None for each in starts)
    assert any(each.failed for each in starts)
    assert all(entry.seconds is None for each in starts for entry in each.failed)
    with pytest.raises(SpaceError, match="All 3 configurations of failing failed"):
        choose_start(spaces.failing(), 0)


def test_a_space_is_a_task_folder(tmp_path: Path) -> None:
    space = spaces.bowl()
    task = load_task(spaces.task_folder(tmp_path, space, space.by_values[spaces.BEST]))
    assert (task.name, task.inputs, task.outputs, task.shapes) == ("bowl", (), (), ())
    assert task.starting_kernel.language is Language.CONFIGURATION
    assert read_space(task.folder / task.space) == space
    assert values_of(space, task.starting_kernel) == spaces.BEST


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('space = "other.json"', "'space' must be the name of a file"),
        ('space = "../task.toml"', "'space' must be the name of a file"),
        ("space = 3", "'space': Expected"),
        ('space = "bowl.json"\n[shapes]', "unknown field `shapes`"),
    ],
)
def test_a_folder_that_is_no_space_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    folder = spaces.task_folder(tmp_path, spaces.bowl(), spaces.bowl().entries[0])
    (folder / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=says):
        load_task(folder)
