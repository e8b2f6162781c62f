"""A real browser for tests: find it, and show the widget in a page that stands for a notebook."""

from __future__ import annotations

import base64
import shutil
from typing import TYPE_CHECKING

from mctskernel.report.page import FASTEST, Parts, compressed_plotly, script, style
from mctskernel.report.widget import PLOTLY

if TYPE_CHECKING:
    from playwright.sync_api import Page

READY = '.mctskernel[data-ready="true"]'

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
"""The part of a notebook that a widget needs; parts of the run come from Python through `window.ask`."""


def find_browser() -> str | None:
    """A Chromium on PATH; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def show_widget(page: Page, parts: Parts) -> None:
    """Show the widget in a page, and wait until it can be used."""

    def ask(name: str) -> str:
        part = compressed_plotly(FASTEST) if name == PLOTLY else parts.part(name, FASTEST)
        return base64.b64encode(part).decode()

    page.expose_function("ask", ask)
    page.evaluate(f"given => void ({MODEL})(given)", {"esm": script("widget"), "css": style()})
    page.wait_for_selector(READY, timeout=120_000)
