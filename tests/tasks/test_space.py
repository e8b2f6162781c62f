"""Where the search of a search-space cache starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.core.budget import Budget, Spent
from mctskernel.core.kernel import Language
from mctskernel.core.space import SpaceError, values_of
from mctskernel.core.task import TaskError
from mctskernel.core.task_file import load_task
from mctskernel.profiling.spaces import read_space
from mctskernel.tasks.space import choose_start, write_space_task
from tests import spaces

PLENTY = Budget(evaluations=100)


def test_values_that_are_named_are_kept_and_the_rest_is_in_the_middle() -> None:
    start = choose_start(spaces.bowl(), "padded=true, block=32", 0, PLENTY)
    assert start.entry.values in ((32, 2, "row", True), (32, 2, "column", True))
    exact = choose_start(spaces.bowl(), "block=32,tile=4,layout=column,padded=False", 0, PLENTY)
    assert exact.entry.values == (32, 4, "column", False)


def test_starts_that_failed_are_counted_with_their_cost() -> None:
    start = choose_start(spaces.bowl(), "block=256,tile=4", 0, PLENTY)
    # All four of these fail; so does the nearest with another tile, and a block of 128 is as near.
    assert start.entry.seconds is not None
    assert len(start.failed) >= 4
    assert {each.values[:2] for each in start.failed[:4]} == {(256, 4)}
    assert start.spent == Spent(len(start.failed), float(len(start.failed)))


@pytest.mark.parametrize("budget", [Budget(evaluations=4), Budget(seconds=4.0)])
def test_a_budget_that_goes_to_failing_starts_is_a_sentence(budget: Budget) -> None:
    with pytest.raises(SpaceError, match="whole budget went to"):
        choose_start(spaces.bowl(), "block=256,tile=4", 0, budget)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("centre", "is middle, random or NAME=VALUE"),
        ("width=1", "no parameter 'width' .it has block, tile"),
        ("block=33", "block of bowl is never 33 .it is 32, 64"),
        ("block=32,tile=4,padded=true", "no configuration with block=32,tile=4"),
    ],
)
def test_a_start_that_is_not_there_is_a_sentence(wanted: str, says: str) -> None:
    with pytest.raises(SpaceError, match=says):
        choose_start(spaces.bowl(), wanted, 0, PLENTY)


def test_a_space_is_a_task_folder(tmp_path: Path) -> None:
    space = spaces.bowl()
    write_space_task(space, space.by_values[spaces.BEST], tmp_path)
    task = load_task(tmp_path)
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
        ('space = "bowl.json.gz"\n[shapes]', "unknown field `shapes`"),
    ],
)
def test_a_folder_that_is_no_space_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    write_space_task(spaces.bowl(), spaces.bowl().entries[0], tmp_path)
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=says):
        load_task(tmp_path)
