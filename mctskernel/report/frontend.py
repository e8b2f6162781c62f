"""The front end: ES modules and a style sheet of this package, joined into one text, and plotly's own."""

from __future__ import annotations

import gzip
import re
from functools import cache
from importlib.resources import files

from plotly.offline import get_plotlyjs

REPORT = "report"
WIDGET = "widget"

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


@cache
def script(host: str) -> str:
    """The module of a host with all that it imports before it, as one ES module.

    The modules share a scope then, so no name may be declared by two of them.
    """
    joined: dict[str, str] = {}
    _join(host, joined)
    return "\n".join(joined.values())


@cache
def style() -> str:
    """The style sheet."""
    return _static("view.css")


@cache
def plotly_text() -> str:
    """plotly.js, as the plotly package ships it."""
    text: str = get_plotlyjs()
    return text


@cache
def compressed_plotly(level: int) -> bytes:
    """plotly.js by gzip, at one of its levels."""
    return gzip.compress(plotly_text().encode(), compresslevel=level, mtime=0)


def _join(name: str, joined: dict[str, str]) -> None:
    if name in joined:
        return
    text = _static(f"{name}.js")
    for imported in _IMPORT.findall(text):
        _join(imported, joined)
    joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))


def _static(name: str) -> str:
    return (files("mctskernel.report") / "static" / name).read_text("utf-8")
