"""The tree as a Jupyter widget: Python makes the parts of the run when the browser asks for them."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from mctskernel.blobs import BlobError
from mctskernel.report.frontend import WIDGET, compressed_plotly, script, style
from mctskernel.report.parts import SOONEST, PartError, Parts
from mctskernel.run import RunError
from mctskernel.tree.evidence import EvidenceError
from mctskernel.tree.journal import JournalError

PLOTLY = "plotly"


class TreeView(anywidget.AnyWidget):
    """The tree of a run. `selected` is the number of the node whose evidence is shown; setting it selects."""

    _esm = script(WIDGET)
    _css = style()
    selected = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts
        self.on_msg(self._answer)

    def _answer(self, _: object, message: dict[str, Any], __: list[bytes]) -> None:
        """Sends the part that the browser asks for, or why there is none."""
        name = str(message.get("name", ""))
        try:
            part = compressed_plotly(SOONEST) if name == PLOTLY else self._parts.part(name, SOONEST)
        except (PartError, RunError, BlobError, EvidenceError, JournalError) as error:
            self.send({"name": name, "problem": str(error)})
        else:
            self.send({"name": name}, [part])
