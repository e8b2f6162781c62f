"""How large the report of a run is, and how soon it can be used: in a real browser, and as a widget.

    python -m mctskernel.experiments.report_cost --out report_cost.json
    python -m mctskernel.experiments.report_cost --nodes 200 --loaded 1000 --run runs/mine

Runs are made up (`subjects.made_runs`), unless `--run` names one to be opened as well. Needs playwright and a Chromium
on PATH. A page can be used once it has drawn the tree and the evidence of the best node; its seconds are
told as they passed, and as the page's main thread was busy, which other programs disturb less.
"""

from __future__ import annotations

import base64
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mctskernel import load_run
from mctskernel.experiments.records.provenance import write_result
from mctskernel.experiments.subjects.made_runs import make_run
from mctskernel.report.frontend import WIDGET, compressed_plotly, script, style
from mctskernel.report.page import report_page
from mctskernel.report.parts import SOONEST, Parts
from mctskernel.report.view import load_view
from mctskernel.report.widget import PLOTLY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
READY = '.mctskernel[data-ready="true"]'
DRAWN = '.mctskernel [data-drawn="true"]'
OPENINGS = 5
"""Of a report or a widget, whose median is told."""

PATIENCE = 120_000
"""Milliseconds."""

MODEL = """\
async ({ esm, css }) => {
  const listeners = [];
  const state = {};
  const model = {
    on: (event, listen) => event === "msg:custom" && listeners.push(listen),
    get: (name) => state[name],
    set: (name, value) => (state[name] = value),
    save_changes: () => {},
    send: async ({ name }) => {
      const bytes = Uint8Array.from(atob(await window.ask(name)), (letter) => letter.charCodeAt(0));
      listeners.forEach((listen) => listen({ name }, [new DataView(bytes.buffer)]));
    },
  };
  const sheet = document.createElement("style");
  sheet.textContent = css;
  document.head.append(sheet);
  const { default: widget } = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  await widget.render({ model, el: document.body });
}
"""
"""A notebook as far as a widget needs it: what it asks for comes from Python."""


class Cost(msgspec.Struct, frozen=True):
    """Of a run with so many nodes. Seconds; `busy` are those of the browser's main thread.

    `picture` is the tree of the widget, `widget` all of it, the evidence of the best node included.
    """

    nodes: int
    load_seconds: float
    report_seconds: float | None = None
    report_bytes: int | None = None
    open_seconds: float | None = None
    open_busy_seconds: float | None = None
    picture_seconds: float | None = None
    widget_seconds: float | None = None


@click.command()
@click.option("--nodes", default=1000, show_default=True, help="Of the run that is reported.")
@click.option(
    "--loaded", default=10_000, show_default=True, help="Of the run that is loaded and shown as a widget."
)
@click.option("--run", type=click.Path(path_type=Path), help="Report this run too.")
@click.option("--out", type=click.Path(path_type=Path), help="Write what was measured there, as JSON.")
def main(nodes: int, loaded: int, run: Path | None, out: Path | None) -> None:
    """Measure what opening runs costs."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the functions below work without it

    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        costs = {f"made up, {nodes} nodes": reported(browser, make_run(Path(folder, "run"), nodes).path)}
        # Random search is the soonest grown.
        large = make_run(Path(folder, "large"), loaded, strategy="random").path
        costs[f"made up, {loaded} nodes"] = shown(browser, large)
        if run is not None:
            costs[run.name] = reported(browser, run)
    found = {"load": os.getloadavg()[0], "costs": costs}
    click.echo(msgspec.json.format(msgspec.json.encode(found)))
    if out is not None:
        write_result(out, found)


def find_browser() -> str | None:
    """A Chromium on PATH; None if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def reported(browser: Browser, run: Path) -> Cost:
    """What the report of a run costs to write and to open."""
    began = time.perf_counter()
    view = load_view(run)
    loaded = time.perf_counter()
    page = report_page(view)
    written = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        path.write_text(page)
        opened = [open_report(browser, path) for _ in range(OPENINGS)]
        seconds, busy = (statistics.median(each) for each in zip(*opened, strict=True))
        size = path.stat().st_size
    return Cost(len(view.tree.nodes), loaded - began, written - loaded, size, seconds, busy)


def shown(browser: Browser, run: Path) -> Cost:
    """What it costs to load a run and to show it in a notebook."""
    began = time.perf_counter()
    found = load_run(run)
    loaded = time.perf_counter()
    shows = [_show_once(browser, Parts(found.view, found.document)) for _ in range(OPENINGS)]
    picture, seconds = (statistics.median(each) for each in zip(*shows, strict=True))
    return Cost(len(found.view.tree.nodes), loaded - began, picture_seconds=picture, widget_seconds=seconds)


def _show_once(browser: Browser, parts: Parts) -> tuple[float, float]:
    page = browser.new_page()
    page.goto("about:blank")
    start = time.perf_counter()
    picture = show_widget(page, parts)
    seconds = time.perf_counter() - start
    page.close()
    return picture, seconds


def open_report(browser: Browser, path: Path) -> tuple[float, float]:
    """Seconds until a report can be used, and those that its main thread was busy."""
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    start = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector(READY, timeout=PATIENCE)
    seconds = time.perf_counter() - start
    metrics = session.send("Performance.getMetrics")["metrics"]
    busy = next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
    page.close()
    return seconds, busy


def show_widget(page: Page, parts: Parts) -> float:
    """Shows the widget in a page that stands for a notebook until it can be used; seconds until the tree is drawn."""

    def ask(name: str) -> str:
        part = compressed_plotly(SOONEST) if name == PLOTLY else parts.part(name, SOONEST)
        return base64.b64encode(part).decode()

    page.expose_function("ask", ask)
    arguments: dict[str, Any] = {"esm": script(WIDGET), "css": style()}
    began = time.perf_counter()
    page.evaluate(f"given => void ({MODEL})(given)", arguments)
    page.wait_for_selector(DRAWN, timeout=PATIENCE, state="attached")
    drawn = time.perf_counter() - began
    page.wait_for_selector(READY, timeout=PATIENCE)
    return drawn


if __name__ == "__main__":
    main()
