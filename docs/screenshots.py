"""Take the README's screenshot of the report of a recorded run.

    pip install -e '.[browser]'
    python docs/screenshots.py

Needs Chromium on the PATH. Writes docs/images/report.png.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
IMAGES = REPOSITORY / "docs" / "images"
RUN = "matmul_mcts_h100"


def main() -> None:
    """Unpack the recorded run and take a picture of its report."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("No Chromium on the PATH.")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        shutil.unpack_archive(NOTEBOOKS / "recorded" / f"{RUN}.tar.xz", folder, filter="data")
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.25)
        take_report(page, Path(folder))
        browser.close()


def take_report(page: Page, folder: Path) -> None:
    """The report of the run, as it opens, with the diff of the best kernel's first big step."""
    mctskernel(folder, "report", RUN, "-o", "report.html")
    page.goto((folder / "report.html").as_uri())
    page.get_by_role("tab", name="Diff").click()
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "report.png")


def mctskernel(folder: Path, *words: str) -> None:
    """Run a command in a folder."""
    subprocess.run([sys.executable, "-m", "mctskernel", *words], cwd=folder, check=True)


if __name__ == "__main__":
    main()
