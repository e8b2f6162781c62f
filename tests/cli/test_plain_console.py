"""Texts of models and candidates on a terminal."""

import io
import re

import pytest
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mctskernel.cli.plain_console import PlainConsole

STYLES = re.compile(r"\x1b\[[0-9;]*m")
ORDERS = "\x1b]0;title\x07 \x1b[2J \x9b31m \x1b]8;;http://a\x1b\\ \r\b over"


def printed(renderable: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file, force_terminal=True, width=120).print(renderable)
    return file.getvalue()


def table(text: str) -> Table:
    made = Table()
    made.add_column("edit")
    made.add_row(Text(text))
    return made


@pytest.mark.parametrize("renderable", [Text(ORDERS, "bold red"), Syntax(ORDERS, "diff"), table(ORDERS)])
def test_no_text_gives_the_terminal_orders(renderable: object) -> None:
    left = STYLES.sub("", printed(renderable))
    assert "title" in left
    assert not set(left) & {"\x1b", "\x07", "\x9b", "\r", "\b"}


def test_lines_and_styles_stay() -> None:
    text = printed(Text("one\ntwo", "bold"))
    assert "\x1b[1m" in text
    assert "one" in text.splitlines()[0]
    assert "two" in text.splitlines()[1]
