"""Whole texts of a run by address: sources, logs, counters and the like, of which answers hold the beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from mctskernel.asks import AskedTask, asked_task
from mctskernel.mcp_server.engine import Engine
from mctskernel.mcp_server.errors import RequestError
from mctskernel.report.markdown import trajectory_markdown
from mctskernel.report.view import View
from mctskernel.session import device_sentences
from mctskernel.tree.export import to_json


@dataclass(frozen=True)
class Text:
    """A kind of text: what it is, its media type, and how it is read."""

    description: str
    media_type: str
    of_run: Callable[[View], str] | None = None
    of_node: Callable[[View, int], str] | None = None


def task_of(view: View) -> AskedTask:
    """What an agent is told of a run's task and device."""
    task = view.folder.load_task()
    return asked_task(task, device_sentences(view.manifest.fingerprint, task))


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


TEXTS: Mapping[str, Text] = {
    "task": Text(
        "What is computed, what on, and how a kernel is written: reference, shapes, tolerance, launch plan.",
        "application/json",
        of_run=lambda view: _json(task_of(view)),
    ),
    "tree": Text("Every node.", "application/json", of_run=lambda view: to_json(view.tree)),
    "trajectory": Text("The best path with its evidence.", "text/markdown", of_run=trajectory_markdown),
    "source": Text("A node's kernel.", "text/plain", of_node=lambda view, node: view.source(node)),
    "diff": Text(
        "What its edit changed in its parent.", "text/plain", of_node=lambda view, node: view.diff(node)
    ),
    "log": Text("The compiler's log.", "text/plain", of_node=lambda view, node: view.evaluation(node).log),
    "counters": Text(
        "Counters under Nsight Compute's names, times in seconds.",
        "application/json",
        of_node=lambda view, node: _json(view.evaluation(node).counters),
    ),
    "evaluation": Text(
        "Everything that is recorded of its evaluation.",
        "application/json",
        of_node=lambda view, node: _json(view.evaluation(node)),
    ),
}


def template(kind: str) -> str:
    """The addresses of a kind of text."""
    return address("{run}", kind) if TEXTS[kind].of_run else f"{_BEGINNING}{{run}}/nodes/{{node}}/{kind}"


def address(run: str, kind: str, node: int | None = None) -> str:
    """The address of a text. The run isn't its host, since hosts are written in small letters."""
    return f"{_BEGINNING}{run}/{kind}" if node is None else f"{_BEGINNING}{run}/nodes/{node}/{kind}"


_BEGINNING = "mctskernel://runs/"

_ADDRESS = re.compile(_BEGINNING + r"(?P<run>[^/]+)(?:/nodes/(?P<node>\d{1,9}))?/(?P<kind>[a-z]+)")


def read_text(engine: Engine, uri: str) -> tuple[str, str]:
    """A text and its media type. Raises RequestError, and what reading a run raises."""
    found = _ADDRESS.fullmatch(uri)
    text = TEXTS.get(found["kind"]) if found else None
    if found and text and text.of_node and found["node"]:
        return text.of_node(engine.view(found["run"]), int(found["node"])), text.media_type
    if found and text and text.of_run and not found["node"]:
        return text.of_run(engine.view(found["run"])), text.media_type
    known = ", ".join(map(template, TEXTS))
    raise RequestError(f"There is no text at '{uri[:200]}'. These can be read: {known}.")
