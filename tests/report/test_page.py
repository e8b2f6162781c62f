"""A run as one HTML file."""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mctskernel.cli import main
from mctskernel.core.evaluation import Evaluation, Outcome, Source
from mctskernel.core.task_file import load_task
from mctskernel.report.document import Document, view_document
from mctskernel.report.page import report_page
from mctskernel.report.view import load_view
from mctskernel.run import prepare_run, write_manifest
from tests.conftest import KERNEL, WriteTask
from tests.told_run import CONFIGURATION, EXCHANGE, FINGERPRINT, ToldRun, failed, quarantined, timed

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


def _hostile(write_task: WriteTask, path: Path) -> ToldRun:
    told = ToldRun(path, write_task(kernel=f"{KERNEL}// {HOSTILE}\n"))
    evil = Evaluation(Outcome.BUILD_ERROR, Source.MODELLED, HOSTILE, log=HOSTILE)
    told.edits(0, (HOSTILE, timed(50.0)), ("harmless", evil), exchange=replace(EXCHANGE, reply=HOSTILE))
    return told


def test_no_text_of_a_run_is_markup(write_task: WriteTask, tmp_path: Path) -> None:
    page = report_page(load_view(_hostile(write_task, tmp_path / "run").folder.path))
    found = _elements(page)
    assert "onerror" not in page
    assert set(found.names) == {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "p",
        "noscript",
        "script",
    }
    assert found.names.count("script") == len(found.parts) + 1
    assert not found.addresses, "a page that opens offline refers to nothing"
    assert _document(page).nodes[1].title == HOSTILE


def test_only_its_own_script_may_run(write_task: WriteTask, tmp_path: Path) -> None:
    page = report_page(load_view(_hostile(write_task, tmp_path / "run").folder.path))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy[1]


def test_the_command_says_where_the_report_is(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    told.edits(0, ("wider loads", timed(50.0)))
    result = CliRunner().invoke(main, ["report", str(told.folder.path)])
    assert result.exit_code == 0, result.output
    assert _document((told.folder.best / "report.html").read_text()).headline.speedup == pytest.approx(2.0)
    elsewhere = tmp_path / "there.html"
    result = CliRunner().invoke(main, ["report", str(told.folder.path), "-o", str(elsewhere)])
    assert str(elsewhere) in result.output.replace("\n", "")


def test_a_run_without_an_evaluation_opens(write_task: WriteTask, tmp_path: Path) -> None:
    folder = prepare_run(tmp_path / "run", load_task(write_task()))
    write_manifest(folder, CONFIGURATION, FINGERPRINT)
    folder.journal.write_text('{"schema":"mctskernel.journal","version":4}\n')
    document = _document(report_page(load_view(folder.path)))
    assert document.headline.state == "No kernel has been submitted yet."
    assert document.headline.best is None
    assert not document.nodes


def test_a_run_of_nothing_but_failures_says_so(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task(), root=failed(Outcome.WRONG_RESULT))
    document = view_document(load_view(told.folder.path))
    assert "nothing but failures" in document.headline.state
    assert [(kind.outcome, kind.count, kind.nodes) for kind in document.failures] == [
        ("wrong result", 1, (0,))
    ]


def test_a_run_that_is_being_written_opens(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    told.edits(0, ("wider loads", timed(50.0)))
    with told.folder.journal.open("a") as journal:
        journal.write('{"event":"evaluated","node":2,"eval')
    with pytest.warns(match="last line"):
        page = report_page(load_view(told.folder.path))
    document = _document(page)
    assert "Still searching" in document.headline.state
    assert document.roofline is None, "without counters there is no roofline"
    assert len(document.nodes) == 2


def test_a_run_of_a_newer_version_is_refused_with_a_sentence(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    manifest = told.folder.manifest.read_text()
    told.folder.manifest.write_text(manifest.replace('"schema_version": 1', '"schema_version": 99'))
    result = CliRunner().invoke(main, ["report", str(told.folder.path)])
    assert result.exit_code == 4
    assert "schema version 99" in result.output


def test_the_document_counts_failures_and_successes(write_task: WriteTask, tmp_path: Path) -> None:
    told = ToldRun(tmp_path / "run", write_task())
    told.edits(
        0, ("a", timed(50.0)), ("b", timed(200.0)), ("c", failed()), ("d", failed()), ("e", quarantined(1.0))
    )
    document = view_document(load_view(told.folder.path))
    assert [(kind.outcome, kind.count) for kind in document.failures] == [
        ("build error", 2),
        ("quarantined", 1),
    ]
    (edits,) = document.edits
    assert (edits.tried, edits.valid, edits.gained, edits.lost) == (5, 2, 1, 1)
    assert edits.best_gain == pytest.approx(2.0)
    assert document.best_path == (0, 1)
    assert [moment.best for moment in document.progress][:2] == [0, 1]
