"""Take the pictures of the README and the documentation, of a recorded run.

    pip install -e '.[browser,notebook]'
    python docs/screenshots.py

Needs Chromium on the PATH. Writes docs/images/report.png, notebook.png and terminal.png.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
IMAGES = REPOSITORY / "docs" / "images"
RUN = "matmul_mcts_h100"

CELLS = (f'import mctskernel as mk\n\nrun = mk.load_run("{RUN}")\nrun', "run.tree()")

LINES = 44
"""Of the terminal's picture."""


def main() -> None:
    """Unpack the recorded run and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on the PATH.")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.unpack_archive(NOTEBOOKS / "recorded" / f"{RUN}.tar.xz", folder, filter="data")
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.25)
        for take in (take_report, take_terminal, take_notebook):
            take(page, Path(folder))
        browser.close()


def take_report(page: Page, folder: Path) -> None:
    """The report of the run at a step of the best path, with its diff."""
    mctskernel(folder, "report", RUN, "-o", "report.html")
    page.goto((folder / "report.html").as_uri())
    page.get_by_role("button", name="node 17", exact=True).click()
    page.get_by_role("tab", name="Diff").click()
    page.wait_for_timeout(1500)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "report.png")


def take_terminal(page: Page, folder: Path) -> None:
    """The best path in a terminal of 120 columns."""
    shown = mctskernel(folder, "show", RUN, FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="120")
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi("\n".join(shown.splitlines()[:LINES])))
    page.set_content(console.export_svg(title=f"mctskernel show {RUN}"))
    page.locator("svg").screenshot(path=IMAGES / "terminal.png")


def take_notebook(page: Page, folder: Path) -> None:
    """The run in JupyterLab, with its tree as a widget."""
    cells = [
        {
            "cell_type": "code",
            "source": each,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": f"c{at}",
        }
        for at, each in enumerate(CELLS)
    ]
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "look.ipynb").write_text(json.dumps(notebook))
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--IdentityProvider.token="],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None  # noqa: S101 - a pipe
        said = ""
        while "Control-C" not in said:
            said += server.stderr.readline()
        address = re.search(r"http://\S+/lab", said)
        assert address is not None, said  # noqa: S101 - it listens
        page.goto(f"{address[0]}/tree/look.ipynb")
        page.get_by_role("button", name="No", exact=True).click(timeout=300_000)  # of news
        page.keyboard.press("Control+b")  # without the list of files
        page.get_by_text("| Idle").wait_for(timeout=300_000)  # before that JupyterLab asks for a kernel
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.wait_for_selector('.mctskernel[data-ready="true"]', timeout=300_000)
        page.wait_for_timeout(1500)
        page.screenshot(path=IMAGES / "notebook.png")
    finally:
        server.terminate()
        server.wait()


def mctskernel(folder: Path, *words: str, **environment: str) -> str:
    """What a command prints in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "mctskernel", *words],
        cwd=folder,
        env=os.environ | environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout


if __name__ == "__main__":
    main()
