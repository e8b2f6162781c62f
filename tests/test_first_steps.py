"""What the README, the tutorial and the other pages tell a reader to type."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mctskernel.cli import main

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

COMMAND = re.compile(r"\bmctskernel ((?!is\b)[a-z][a-z-]*)\b([^`\n|;]*)")
STEP = re.compile(
    r"^```\S*\n(?P<text>[^`]*)^```|^    (?P<command>(?:mctskernel|sed|python) .*)", re.MULTILINE
)
"""A fenced block, or a command that is indented."""


def commands_of(page: Path) -> list[tuple[str, str]]:
    """The first two words and the rest of every command line of a page."""
    shown = re.findall(r"`([^`\n]+)`|^    (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return [
        found for inline, line in shown for found in COMMAND.findall((inline or line).partition("  #")[0])
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    context = click.Context(main)
    for name, rest in commands_of(page):
        command = main.get_command(context, name)
        assert command is not None, f"mctskernel {name}"
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest.partition(" && ")[0]):
            assert option in known | {"--help"}, f"mctskernel {name}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_and_file_of_a_page_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    for name in re.findall(r"`(mctskernel\.\w+\.[\w.]*\w)", text):
        pkgutil.resolve_name(name)
    for file in re.findall(r"`((?:mctskernel|tree|edits|profiling|experiments|tests|docs)/[\w./]+)`", text):
        assert (ROOT / file).exists(), file


def typed(line: str, folder: Path) -> str:
    """Standard output of a line that a user types, in a folder."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COLUMNS"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), (
        f"{line}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_works_as_typed(tmp_path: Path) -> None:
    printed = ""
    for step in STEP.finditer((ROOT / "docs" / "tutorial.md").read_text("utf-8")):
        if command := step["command"]:
            printed += typed(command, tmp_path)
        elif named := re.match(r"(?://|#) (\S+)\n", step["text"]):
            (tmp_path / named[1]).write_text(step["text"], "utf-8")
            if "import mctskernel" in step["text"]:
                printed += typed(f"python {named[1]}", tmp_path)
    for expected in (
        "25x over the starting kernel",
        "29x over the starting kernel",
        "blocks of one warp: ok (node 1)",
    ):
        assert expected in printed
    assert (tmp_path / "progress.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_screen_of_the_readme_works(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    lines: list[str] = re.findall(r"^    (mctskernel .*)$", text, re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["search", "show", "report"]
    for line in lines:
        typed(line.replace("--budget 100", "--budget 2 --out first").replace("RUN", "first"), tmp_path)
    (python,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    python = python.replace('mk.search("softmax", budget=50)', 'mk.load_run("first")')
    (tmp_path / "first.py").write_text(python)
    assert "node 1: one block per row" in typed("python first.py", tmp_path)
