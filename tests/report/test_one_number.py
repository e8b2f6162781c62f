"""The best kernel and its speed-up are the same wherever a run is shown."""

import shutil
from pathlib import Path

from mctskernel.answer import best_node
from mctskernel.report.notebook import Run
from mctskernel.report.view import load_view
from tests.cli.command import flat, mctskernel
from tests.synthetic_run import SyntheticRun, timed


def test_the_first_of_modelled_ties_is_the_best_everywhere(tmp_path: Path, small_task: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "run", small_task)
    synthetic.edits(0, ("twice", timed(50.0)), ("slower", timed(200.0)))
    synthetic.edits(1, ("a hair faster", timed(49.0)))
    folder = synthetic.folder.path
    view = load_view(folder)
    document = Run(view).document
    assert best_node(view.tree) == view.best.id == document.headline.best == document.progress[-1].best == 1
    assert document.best_path[-1] == view.steps[-1].node == 1
    assert document.headline.speedup == document.progress[-1].best_speedup == view.steps[-1].speedup == 2.0
    for command in ("show", "watch"):
        shown = flat(mctskernel(command, folder).stdout)
        assert "double: 2.0x over the starting kernel" in shown
        assert "Node 3 is 2.0% faster, within the model's uncertainty of" in shown
        assert "chosen: node 1, fewer edits." in shown
    assert "2.0x [" in flat(mctskernel("compare", folder, shutil.copytree(folder, tmp_path / "other")).stdout)
    assert "2.0x modelled" in repr(Run(view))
