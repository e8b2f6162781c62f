"""A run as an HTML file and as Markdown: untrusted texts are harmless, and every state of a run opens."""

import base64
import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.report.document import Document
from mctskernel.report.page import report_page
from mctskernel.report.view import load_view
from tests.conftest import KERNEL, WriteTask
from tests.synthetic_run import EXCHANGE, SyntheticRun, timed

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"


class _Elements(HTMLParser):
    """Counts the elements of a page, and gathers the parts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.parts: dict[str, str] = {}
        self._part: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        known = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        self._part = known.get("data-part")

    def handle_data(self, data: str) -> None:
        if self._part:
            self.parts[self._part] = data
            self._part = None


def _elements(page: str) -> _Elements:
    found = _Elements()
    found.feed(page)
    return found


def _document(page: str) -> Document:
    data = gzip.decompress(base64.b64decode(_elements(page).parts["document"]))
    return msgspec.json.decode(data, type=Document)


def test_no_text_of_a_run_is_markup_and_only_the_page_s_own_script_may_run(
    write_task: WriteTask, tmp_path: Path
) -> None:
    synthetic = SyntheticRun(tmp_path / "run", write_task(kernel=f"{KERNEL}// {HOSTILE}\n"))
    evil = Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, HOSTILE, log=HOSTILE)
    said = msgspec.structs.replace(EXCHANGE, reply=HOSTILE)
    synthetic.edits(0, (HOSTILE, timed(50.0)), ("harmless", evil), exchange=said)
    page = report_page(load_view(synthetic.folder.path))
    found = _elements(page)
    assert "onerror" not in page
    assert set(found.names) == set("html head meta title style body main p noscript script".split())
    assert found.names.count("script") == len(found.parts) + 1
    assert not found.addresses, "a page that opens offline has no links"
    assert _document(page).nodes[1].title == HOSTILE
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy[1]


def test_the_command_says_where_the_report_is(write_task: WriteTask, tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "run", write_task())
    synthetic.edits(0, ("wider loads", timed(50.0)))
    result = CliRunner().invoke(main, ["report", str(synthetic.folder.path)])
    assert result.exit_code == 0, result.output
    assert _document((synthetic.folder.best / "report.html").read_text()).headline.speedup == pytest.approx(
        2.0
    )
    elsewhere = tmp_path / "there.html"
    result = CliRunner().invoke(main, ["report", str(synthetic.folder.path), "-o", str(elsewhere)])
    assert str(elsewhere) in result.output.replace("\n", "")


def test_a_run_that_is_being_written_opens(write_task: WriteTask, tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "run", write_task())
    synthetic.edits(0, ("wider loads", timed(50.0)))
    with synthetic.folder.journal.open("a") as journal:
        journal.write('{"event":"evaluated","node":2,"eval')
    with pytest.warns(match="last line"):
        page = report_page(load_view(synthetic.folder.path))
    document = _document(page)
    assert "has not passed the final validation" in document.headline.state
    assert document.roofline is None, "without counters there is no roofline"
    assert len(document.nodes) == 2
