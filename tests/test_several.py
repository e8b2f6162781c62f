"""Several tasks under one budget: where evaluations go, what is kept, and what a file of weights may say."""

from pathlib import Path

import pytest

from mctskernel.core.user_errors import MisuseError
from mctskernel.run import open_run
from mctskernel.run.several import read_weights
from mctskernel.tasks.space import choose_start
from mctskernel.tree.journal import read_tree
from tests.cli.command import mctskernel
from tests.spaces import bowl, single, task_folder


@pytest.fixture
def tasks(tmp_path: Path) -> tuple[Path, Path]:
    """A space with many configurations, and one with nothing to gain."""
    first, second = (task_folder(tmp_path, each, choose_start(each, 0).entry) for each in (bowl(), single()))
    return first, second


def evaluations(folder: Path) -> int:
    return read_tree(open_run(folder).journal).evaluations


def test_evaluations_go_where_something_is_left_to_gain(tasks: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = mctskernel("search", *tasks, "--budget", 12, "--out", out)
    assert result.exit_code == 0, result.output
    assert (evaluations(out / "bowl"), evaluations(out / "single")) == (11, 1)
    assert "All of them together: " in result.stdout
    again = mctskernel("search", *tasks, "--budget", 15, "--out", out)
    assert again.exit_code == 0, again.output
    assert evaluations(out / "bowl") == 14
    assert mctskernel("resume", out / "bowl", "--budget", 16).exit_code == 0
    assert evaluations(out / "bowl") == 16


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = 1", "lacks 'b'"),
        ("a = 1\nb = 0", "'b' must be a number above 0"),
        ("a = 1\nb = 2\nc = 3", "names 'c'"),
        ("a = ", "is not valid TOML"),
    ],
)
def test_weights_that_cannot_be_used(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "weights.toml"
    file.write_text(text)
    with pytest.raises(MisuseError, match=sentence):
        read_weights(file, ("a", "b"))
