"""Reports in a real browser: opened from disk, offline, looked at, and used by keyboard."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mctskernel.core.evaluation import Conditions, GpuState
from mctskernel.report.page import Parts, report_page
from mctskernel.report.view import load_view
from tests.conftest import KERNEL
from tests.report.browser import READY, find_browser, show_widget
from tests.report.test_page import HOSTILE
from tests.synthetic_run import EXCHANGE, SyntheticRun, failed, timed

playwright = pytest.importorskip("playwright.sync_api")

BROWSER = find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH (Debian: apt-get install chromium)"),
]


CONDITIONS = Conditions(GpuState(1980, 2619, 40), GpuState(1980, 2619, 40))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, small_task: Path) -> Path:
    """A report of six nodes whose texts try to be markup."""
    folder = tmp_path_factory.mktemp("browser")
    task = shutil.copytree(small_task, folder / "task")
    (task / "kernel.cu").write_text(f"{KERNEL}// {HOSTILE}\n")
    synthetic = SyntheticRun(folder / "run", task)
    evil = replace(failed(), message=HOSTILE, log=HOSTILE)
    exchange = msgspec.structs.replace(EXCHANGE, reply=HOSTILE)
    synthetic.edits(0, (HOSTILE, timed(50.0, spread=0.01)), ("harmless", evil), exchange=exchange)
    wider = timed(40.0)
    timings = tuple(replace(each, conditions=CONDITIONS) for each in wider.timings)
    wider = replace(wider, timings=timings, gpu="ab" * 16)
    synthetic.edits(1, ("wider loads", wider), ("unrolled by 2", timed(60.0)))
    synthetic.edits(3, ("unrolled by 4", timed(25.0)))
    path = folder / "report.html"
    path.write_text(report_page(load_view(synthetic.folder.path)))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        # Containers run as root, where Chromium's own sandbox doesn't work; the pages are our own.
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


class _Opened:
    """A report in a window of its own, and what it complained of."""

    def __init__(self, browser: playwright.Browser, report: Path, width: int, scheme: str) -> None:
        self.complaints: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        self.page = context.new_page()
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type != "log" else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.requests: list[str] = []
        self.page.goto(report.as_uri())
        self.page.wait_for_selector(READY, timeout=60_000)

    @property
    def heading(self) -> str:
        """What the panel of the selected node is headed with."""
        return self.page.locator(".node-heading h3").inner_text()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_it_is_looked_at_and_used(browser: playwright.Browser, report: Path, width: int, scheme: str) -> None:
    opened = _Opened(browser, report, width, scheme)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
    assert page.locator(".mctskernel").get_attribute("data-theme") == scheme
    assert "node 5 unrolled by 4" in opened.heading

    assert page.get_by_role("button", name="Share").count() == 0, "plotly offers to send charts to its server"

    page.locator(".plot-frame").focus()
    page.keyboard.press("ArrowUp")
    _eventually(page, "document.querySelector('.node-heading h3').textContent.includes('node 3')")
    page.get_by_role("tab", name="Timing", exact=True).click()
    assert all(text in page.locator(".tab-body").inner_text() for text in ("GPU abababab", "1980 MHz, 40 °C"))
    page.get_by_role("button", name="node 1", exact=True).click()
    _eventually(page, "document.querySelector('.node-heading h3').textContent.includes('node 1')")
    assert HOSTILE in opened.heading
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.locator(".tab-body").inner_text().strip()
    page.get_by_role("tab", name="Diff", exact=True).click()
    assert page.locator(".source .added").count() == 1
    page.get_by_label("What the source is compared with").select_option("whole source")
    assert HOSTILE in page.locator(".source").inner_text()

    page.get_by_label("Growth of the tree").fill("2")
    assert "1 evaluation," in page.locator(".moment").inner_text()
    _eventually(page, "document.querySelector('.plot').data.at(-1).x.length === 1")
    page.get_by_label("Growth of the tree").fill("12")
    _eventually(page, "document.querySelector('.plot').data.at(-1).x.length === 6")
    page.get_by_role("button", name="build error", exact=False).first.click()
    # One figure stands for all points until they differ.
    opacity = "document.querySelector('.plot').data.at(-1).marker.opacity"
    _eventually(page, f"Array.isArray({opacity}) && {opacity}.filter(o => o === 1).length === 1")
    page.get_by_label("colour").select_option("bottleneck")
    page.get_by_role("button", name="fold all but the best path").click()
    _eventually(page, "document.querySelector('.plot').data.at(-1).x.length < 7")

    for title in ("Best so far", "Failures", "Environment"):
        page.get_by_role("heading", name=title).scroll_into_view_if_needed()
    assert page.title().startswith("double: 4.0x modelled")
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "blob:"))] == []
    _nothing_else_may_run(page)


def test_the_widget_shows_the_same(browser: playwright.Browser, report: Path) -> None:
    page = browser.new_page(viewport={"width": 700, "height": 800})
    page.goto("about:blank")
    show_widget(page, Parts(load_view(report.parent / "run")))
    assert "node 5 unrolled by 4" in page.locator(".node-heading h3").inner_text()
    page.locator(".node-heading").get_by_role("button", name="1", exact=True).click()
    page.get_by_role("tab", name="Diff", exact=True).click()
    assert page.locator(".source .added").count() == 1


def _eventually(page: playwright.Page, condition: str) -> None:
    """Waits for a condition; playwright's own way to do that needs `eval`, which the page forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def _nothing_else_may_run(page: playwright.Page) -> None:
    """Whatever came to be markup in spite of everything could still not run."""
    markup = "<img src=x onerror='window.taken = 1'>"
    page.evaluate("markup => document.body.insertAdjacentHTML('beforeend', markup)", markup)
    page.wait_for_timeout(200)
    assert page.evaluate("window.taken") is None
