"""A run in Python and Jupyter, as `mctskernel.load_run` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.text import Text

from mctskernel.core.evaluation import Evaluation, Outcome
from mctskernel.core.quantities import speedup_text
from mctskernel.report.comparison import ComparedRun
from mctskernel.report.document import Document, NodeRow, view_document
from mctskernel.report.page import Parts
from mctskernel.report.terminal import summary
from mctskernel.report.view import View

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from mctskernel.report.widget import TreeView


_SCROLLED = '<pre style="white-space: pre; overflow-x: auto">{code}</pre>'
"""Long lines are scrolled: a notebook would break the columns of a table."""


@dataclass(frozen=True)
class RunNode:
    """A node of a run."""

    run: Run
    id: int

    @property
    def row(self) -> NodeRow:
        """Its row in `run.nodes`."""
        return self.run.document.nodes[self.id]

    @property
    def title(self) -> str:
        """The title of the edit that made it."""
        return self.row.title

    @property
    def speedup(self) -> float | None:
        """The starting kernel's time over its own; None where it has none."""
        return self.row.speedup

    @property
    def seconds(self) -> float | None:
        """Seconds of one run; None where it has none."""
        return self.row.seconds

    @property
    def source(self) -> str:
        """The text of its kernel."""
        return self.run.view.source(self.id)

    @property
    def diff(self) -> str:
        """The unified diff against its parent's kernel; empty for the root."""
        return self.run.view.diff(self.id)

    @property
    def evaluation(self) -> Evaluation | None:
        """Its evaluation; None while it is in flight."""
        return self.run.view.node(self.id).evaluation

    def __repr__(self) -> str:
        """Its number, edit and speed-up."""
        speedup = (
            speedup_text(self.speedup, self.evaluation.source)
            if self.speedup and self.evaluation
            else self.row.outcome or "in flight"
        )
        return f"<node {self.id}: {self.title} ({speedup})>"


class Run:
    """A run at the time it was loaded; load it again to see newer evaluations."""

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def document(self) -> Document:
        """The view model that reports show, as plain data."""
        return view_document(self.view)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row for each node, by its number; the columns are the fields of `NodeRow`. Needs pandas."""
        return self._frame(self.document.nodes)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """The rows of `nodes` that failed or are quarantined. Needs pandas."""
        failed = (row for row in self.document.nodes if row.state not in {None, Outcome.OK})
        return self._frame(tuple(failed))

    @cached_property
    def counters(self) -> pd.DataFrame:
        """Counters under Nsight Compute's names, a row for each node that has any. Needs pandas."""
        import pandas as pd  # noqa: PLC0415 - an extra

        found = {node.id: node.evaluation.counters for node in self.view.tree.nodes if node.evaluation}
        return pd.DataFrame.from_dict({node: each for node, each in found.items() if each}, orient="index")

    @property
    def best(self) -> RunNode | None:
        """The answer's node, or the fastest so far; None while no kernel is valid."""
        number = self.document.headline.best
        return None if number is None else RunNode(self, number)

    def node(self, number: int) -> RunNode:
        """Return a node by its number. Raises RunError for one that doesn't exist."""
        return RunNode(self, self.view.node(number).id)

    def path_to(self, node: int | RunNode) -> tuple[RunNode, ...]:
        """Return the nodes from the starting kernel to a node."""
        number = node.id if isinstance(node, RunNode) else self.view.node(node).id
        return tuple(RunNode(self, each) for each in self.view.tree.lineage(number))

    def tree(self) -> TreeView:
        """Show the tree as an interactive widget. Needs the extra `notebook`."""
        from mctskernel.report.widget import TreeView  # noqa: PLC0415 - an extra

        return TreeView(Parts(self.view, self.document))

    def plot(self, figure: str = "evaluations", file: str | Path | None = None, columns: int = 1) -> Figure:
        """Draw a figure of `mctskernel report --figure`, 1 or 2 columns wide (extra `plots`). Raises RunError."""
        from mctskernel.report.figures import draw  # noqa: PLC0415 - reads several runs

        run = ComparedRun(str(self.view.folder.path), self.view)
        return draw(figure, (run,), Path(file) if file else None, columns)

    def __repr__(self) -> str:
        """Its task, its folder, and how many nodes it has."""
        headline = self.document.headline
        speedup = f", {headline.speedup_text}" if headline.speedup else ""
        return (
            f"<run of {headline.task} in {self.view.folder.path}: {len(self.view.tree.nodes)} nodes{speedup}>"
        )

    def _repr_html_(self) -> str:
        # In Jupyter rich would show what it prints, a second time.
        console = Console(file=StringIO(), record=True, width=120, force_jupyter=False)
        if self.view.fastest is None:
            console.print(Text(f"{self!r}: no valid kernel yet"))
        else:
            console.print(summary(self.view))
        return console.export_html(inline_styles=True, code_format=_SCROLLED)

    def _frame(self, rows: tuple[NodeRow, ...]) -> pd.DataFrame:
        import pandas as pd  # noqa: PLC0415 - an extra

        columns = list(NodeRow.__struct_fields__)
        return pd.DataFrame([msgspec.structs.astuple(row) for row in rows], columns=columns).set_index("id")
