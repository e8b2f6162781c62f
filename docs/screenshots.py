"""Take the README's screenshots of the terminal and of the report from a recorded run.

    pip install -e '.[browser]'
    python docs/screenshots.py

Needs Chromium on the PATH. Writes docs/images/terminal.png and report.png.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
IMAGES = REPOSITORY / "docs" / "images"
RUN = "matmul_mcts_h100"
COLUMNS = 104

STYLE = "font: 15px/1.35 'DejaVu Sans Mono', monospace; color: #d9d9d9; padding: 18px; margin: 0; width: fit-content"

PAGE = f'<html><body style="margin: 0; background: #1b1c1d"><pre style="{STYLE}">{{code}}</pre></body></html>'


def main() -> None:
    """Unpack the recorded run and take two pictures of it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on the PATH.")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.unpack_archive(NOTEBOOKS / "recorded" / f"{RUN}.tar.xz", folder, filter="data")
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.25)
        take_terminal(page, Path(folder))
        take_report(page, Path(folder))
        browser.close()


def take_terminal(page: Page, folder: Path) -> None:
    """What `mctskernel watch` shows of the run."""
    printed = mctskernel(folder, "watch", "--once", RUN)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ mctskernel watch {RUN}\n{printed}"))
    page.set_content(console.export_html(theme=MONOKAI, code_format=PAGE, inline_styles=True))
    page.locator("pre").screenshot(path=IMAGES / "terminal.png")


def take_report(page: Page, folder: Path) -> None:
    """The report of the run, as it opens, with the diff of the best kernel's first big step."""
    mctskernel(folder, "report", RUN, "-o", "report.html")
    page.goto((folder / "report.html").as_uri())
    page.get_by_role("tab", name="Diff").click()
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "report.png")


def mctskernel(folder: Path, *words: str) -> str:
    """The coloured output of a command in a folder."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "mctskernel", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    main()
