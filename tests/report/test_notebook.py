"""Runs in Python and in Jupyter."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mctskernel import load_run
from mctskernel.core.user_errors import RunError
from mctskernel.report.page import Parts
from mctskernel.report.widget import TreeView
from tests.conftest import WriteTask
from tests.synthetic_run import EXCHANGE, SyntheticRun, failed, timed


@pytest.fixture
def synthetic(write_task: WriteTask, tmp_path: Path) -> SyntheticRun:
    run = SyntheticRun(tmp_path / "run", write_task())
    run.edits(0, ("wider <loads>", timed(50.0)), ("broken", failed()))
    run.edits(1, ("unrolled", timed(25.0)), exchange=EXCHANGE)
    return run


def test_a_run_as_a_table(synthetic: SyntheticRun) -> None:
    run = load_run(synthetic.folder.path)
    assert list(run.nodes.index) == [0, 1, 2, 3]
    assert list(run.failures.index) == [2]
    assert run.nodes.loc[3, "speedup"] == pytest.approx(4.0)
    assert run.nodes.loc[3, "gain"] == pytest.approx(2.0)


def test_the_best_node_and_the_way_to_it(synthetic: SyntheticRun) -> None:
    run = load_run(str(synthetic.folder.path))
    assert run.best is not None
    assert [node.id for node in run.path_to(run.best)] == [0, 1, 3]
    assert run.path_to(3) == run.path_to(run.best)
    assert run.best.title == "unrolled"
    assert "+#define MADE_3 1" in run.best.diff
    with pytest.raises(RunError, match="no node 9"):
        run.path_to(9)


def test_its_rich_representation_is_no_markup_of_others(synthetic: SyntheticRun) -> None:
    page = load_run(synthetic.folder.path)._repr_html_()
    assert "4.0x" in page
    assert "wider &lt;loads&gt;" in page


class _Recorder(TreeView):
    """A tree view that keeps what it sends."""

    def __init__(self, *args: Any) -> None:
        self.sent: list[tuple[dict[str, str], list[bytes]]] = []
        super().__init__(*args)

    def send(self, content: dict[str, str], buffers: list[bytes] | None = None) -> None:
        self.sent.append((content, buffers or []))

    def part(self, name: str) -> Any:
        """What comes when the browser asks for a part."""
        self._handle_custom_msg({"name": name}, [])
        message, buffers = self.sent.pop()
        assert message["name"] == name
        return msgspec.json.decode(gzip.decompress(buffers[0])) if buffers else message["problem"]


def test_the_widget_answers_the_browser(synthetic: SyntheticRun) -> None:
    view = _Recorder(Parts(load_run(synthetic.folder.path).view))
    assert [node["title"] for node in view.part("document")["nodes"]][3] == "unrolled"
    root, *_, last = view.part("details/0")
    assert root["source"].endswith("}\n")
    assert last["conversation"]["reply"] == EXCHANGE.reply
    assert "conversation" not in view.part("details/0")[1]
    assert "no part" in view.part("details/7").lower()
    assert "no part" in view.part("../../etc/passwd").lower()
