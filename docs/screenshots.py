"""Takes the README's screenshots from a recorded run: of the terminal, of the report and of a notebook.

    pip install -e '.[notebook,plots,browser]'
    python docs/screenshots.py

Needs Chromium on the PATH. Writes docs/images/{terminal,report,notebook}.png.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
IMAGES = REPOSITORY / "docs" / "images"
RUN = "matmul_edit_model_h100"
PORT = 8899
COLUMNS = 104

STYLE = "font: 15px/1.35 'DejaVu Sans Mono', monospace; color: #d9d9d9; padding: 18px; margin: 0; width: fit-content"

PAGE = f'<html><body style="margin: 0; background: #1b1c1d"><pre style="{STYLE}">{{code}}</pre></body></html>'


def main() -> None:
    """Unpack the recorded run and take the three pictures of it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no Chromium on the PATH.")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.unpack_archive(NOTEBOOKS / "recorded" / f"{RUN}.tar.xz", folder, filter="data")
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.25)
        take_terminal(page, Path(folder))
        take_report(page, Path(folder))
        with jupyter(Path(folder)) as address:
            take_notebook(page, address)
        browser.close()


def take_terminal(page: Page, folder: Path) -> None:
    """What `mctskernel watch` shows of the run."""
    said = mctskernel(folder, "watch", "--once", RUN)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ mctskernel watch {RUN}\n{said}"))
    page.set_content(console.export_html(theme=MONOKAI, code_format=PAGE, inline_styles=True))
    page.locator("pre").screenshot(path=IMAGES / "terminal.png")


def take_report(page: Page, folder: Path) -> None:
    """The report of the run, as it opens, with the diff of the best kernel's first big step."""
    mctskernel(folder, "report", RUN, "-o", "report.html")
    page.goto((folder / "report.html").as_uri())
    page.get_by_role("tab", name="Diff").click()
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "report.png")


def take_notebook(page: Page, address: str) -> None:
    """The widget in JupyterLab, after the cells of the first notebook were run."""
    page.goto(address)
    page.get_by_role("button", name="No", exact=True).click(timeout=60_000)  # Jupyter's news
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_text("Run", exact=True).first.click()
    page.locator('li[data-command="runmenu:run-all"]').click()
    widget = page.locator(".mctskernel").first
    widget.wait_for(timeout=60_000)
    widget.locator(".node-heading").first.wait_for(timeout=120_000)
    widget.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "notebook.png")


def mctskernel(folder: Path, *words: str) -> str:
    """What a command says in a folder, in colour."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "mctskernel", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@contextmanager
def jupyter(folder: Path) -> Iterator[str]:
    """JupyterLab on a copy of the notebooks, and the address of the first of them."""
    copy = shutil.copytree(NOTEBOOKS, folder / "notebooks")
    token = secrets.token_hex()
    options = [f"--port={PORT}", "--ip=127.0.0.1", "--no-browser", "--allow-root", f"--notebook-dir={copy}"]
    environment = os.environ | {"JUPYTER_TOKEN": token, "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], env=environment)
    try:
        wait_for(server)
        yield f"http://127.0.0.1:{PORT}/lab/tree/explore_a_run.ipynb?token={token}"
    finally:
        server.terminate()
        server.wait()


def wait_for(server: subprocess.Popen[bytes]) -> None:
    """Until the server answers; raises RuntimeError if it ends before that, or doesn't within a minute."""
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
            return
        time.sleep(0.5)
    raise RuntimeError(f"JupyterLab doesn't listen on port {PORT}.")


if __name__ == "__main__":
    main()
