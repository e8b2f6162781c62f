"""`mctskernel campaign` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mctskernel.campaign.configuration import example, parse_campaign
from mctskernel.campaign.report import read_report
from mctskernel.space_task import write_space_task
from tests import spaces
from tests.cli.test_commands import mctskernel


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two recorded kernels of a model, in a file."""
    text = 'title = "Two bowls"\ndevice = "recorded"\nmodel_seconds = 0.01\n[budget]\nevaluations = 6\n'
    for name, start in (("first", (32, 1, "column", True)), ("second", (64, 1, "row", True))):
        (tmp_path / name).mkdir()
        write_space_task(spaces.bowl(), spaces.entry(*start), tmp_path / name)
        text += f'[[task]]\ntask = "{tmp_path / name}"\nshare = 0.4\nstrategy = "mcts"\n'
    file = tmp_path / "bowls.toml"
    file.write_text(text)
    return file


def test_a_campaign_is_searched_shown_and_gone_on_with(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    begun = mctskernel("campaign", config, "--out", out)
    assert begun.exit_code == 0, begun.output
    assert "Searching 2 tasks on recorded with 1 worker(s)" in begun.stderr
    assert begun.stdout.startswith("# Two bowls")
    assert "The model's time went from 10 ms to" in begun.stdout
    assert "the model's time is" in begun.stderr

    told = mctskernel("campaign", "--table", out)
    assert told.exit_code == 0
    assert told.stdout == begun.stdout

    more = mctskernel("campaign", config, "--out", out, "--budget", "9")
    assert more.exit_code == 0, more.output
    assert read_report(out).evaluations == 9
    shown = mctskernel("show", out / "runs" / "first")
    assert shown.exit_code == 0
    assert "over the starting kernel" in shown.stdout


def test_the_example_can_be_kept_as_a_file() -> None:
    printed = mctskernel("campaign", "--example")
    assert printed.stdout == example()
    assert parse_campaign(printed.stdout).tasks


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "--example"),
        (("absent.toml",), 2, "can't be read as a configuration"),
        (("--table", "."), 2, "is no campaign: it has no campaign.json"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    words: tuple[str, ...], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = mctskernel("campaign", *words)
    assert refused.exit_code == code
    assert sentence in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broken_task_costs_nothing(config: Path, tmp_path: Path) -> None:
    (tmp_path / "second" / "task.toml").write_text("name = 3")
    refused = mctskernel("campaign", config, "--out", tmp_path / "out")
    assert refused.exit_code == 3
    assert str(tmp_path / "second") in refused.stderr
    assert not (tmp_path / "out").exists()
