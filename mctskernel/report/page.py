"""A run as one self-contained HTML file, and the parts that the page or the widget loads when they are looked at.

The file opens from disk, offline, and runs only its own script. Each part is gzip-compressed JSON, which browsers
inflate themselves (`DecompressionStream`). Their names are `document`, `story`, `counters`,
`details/N` (of a block of nodes) and `detail/N` (of one node).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import msgspec
from jinja2 import Environment
from plotly.offline import get_plotlyjs

from mctskernel.report.details import node_details
from mctskernel.report.document import Document, view_document, view_story
from mctskernel.report.view import View

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


def report_page(view: View) -> str:
    """The page of a run. Raises what reading the run may raise."""
    parts, code = Parts(view), script("report")
    content = {name: parts.part(name, SMALLEST) for name in parts.names()}
    content["plotly"] = compressed_plotly(SMALLEST)
    headline = parts.document.headline
    speedup = headline.speedup_text if headline.speedup else "no valid kernel yet"
    # Parts are base64, which can't close their element; the scripts are this package's and plotly's.
    page = Environment(autoescape=True).from_string(_static("page.html"))
    return page.render(
        title=f"{headline.task}: {speedup}",
        state=headline.state,
        policy=_policy(code),
        style=style(),
        parts=[(name, base64.b64encode(part).decode()) for name, part in content.items()],
        script=code,
    )


@cache
def script(host: str) -> str:
    """The JavaScript of `report` or `widget` as one ES module, whose parts must declare different names."""
    joined: dict[str, str] = {}
    _join(host, joined)
    return "\n".join(joined.values())


@cache
def style() -> str:
    return _static("view.css")


@cache
def compressed_plotly(level: int) -> bytes:
    return gzip.compress(get_plotlyjs().encode(), compresslevel=level, mtime=0)


def _policy(code: str) -> str:
    """A Content-Security-Policy that allows this script and what it loads, and no network access."""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' 'strict-dynamic'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _join(name: str, joined: dict[str, str]) -> None:
    if name in joined:
        return
    text = _static(f"{name}.js")
    for imported in _IMPORT.findall(text):
        _join(imported, joined)
    joined[name] = _EXPORT.sub("", _IMPORT.sub("", text))


def _static(name: str) -> str:
    return (files("mctskernel.report") / "static" / name).read_text("utf-8")


NODES_A_PART = 32  # nodes in one block of details: few enough to load at once, many enough to compress well

SMALLEST, FASTEST = 9, 1  # levels of gzip: for a file, and for a notebook


class PartError(LookupError):
    """A part that the run doesn't have."""


class Parts:
    """The parts of one run, each made on first use."""

    def __init__(self, view: View, document: Document | None = None) -> None:
        self.view = view
        self.document = document or view_document(view)

    def names(self) -> Iterator[str]:
        yield from ("document", "story", "counters")
        for number in range(-(-len(self.document.nodes) // NODES_A_PART)):
            yield f"details/{number}"

    def part(self, name: str, level: int) -> bytes:
        """A part, compressed at a level of gzip. Raises PartError, and what reading a run may raise."""
        return gzip.compress(msgspec.json.encode(self._content(name)), compresslevel=level, mtime=0)

    def _content(self, name: str) -> object:
        kind, _, number = name.partition("/")
        match kind:
            case "document":
                return self.document
            case "story":
                return view_story(self.view)
            case "counters":
                return self._counters()
            case "details":
                return [node_details(self.view, node) for node in self._nodes(number)]
            case "detail":
                return node_details(self.view, self._node(number))
            case _:
                raise PartError(f"The run has no part '{name}'.")

    def _counters(self) -> dict[str, list[float | None]]:
        """For each counter the values of all nodes, None where it wasn't read."""
        found = [node.evaluation.counters if node.evaluation else {} for node in self.view.tree.nodes]
        return {
            name: [float(f"{each[name]:.6g}") if name in each else None for each in found]
            for name in self.document.counters
        }

    def _nodes(self, number: str) -> range:
        start = int(number) * NODES_A_PART if number.isdecimal() else len(self.document.nodes)
        nodes = range(len(self.document.nodes))[start : start + NODES_A_PART]
        if not nodes:
            raise PartError(f"There is no part '{number}' of the nodes.")
        return nodes

    def _node(self, number: str) -> int:
        if not number.isdecimal() or int(number) >= len(self.document.nodes):
            raise PartError(f"There is no node '{number}'.")
        return int(number)
