"""The tree as a Jupyter widget: Python makes the parts of the run when the browser asks for them."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from mctskernel.core.user_errors import UserError
from mctskernel.report.page import FASTEST, PartError, Parts, compressed_plotly, script, style

PLOTLY = "plotly"


class TreeView(anywidget.AnyWidget):
    """The tree of a run. `selected` is the number of the node whose details are shown; setting it selects."""

    _esm = script("widget")
    _css = style()
    selected = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts
        self.on_msg(self._answer)

    def _answer(self, _: object, message: dict[str, Any], __: list[bytes]) -> None:
        """Send the part that the browser asks for, or the reason that there is none."""
        name = str(message.get("name", ""))
        try:
            part = compressed_plotly(FASTEST) if name == PLOTLY else self._parts.part(name, FASTEST)
        except (PartError, UserError) as error:
            self.send({"name": name, "problem": str(error)})
        else:
            self.send({"name": name}, [part])
