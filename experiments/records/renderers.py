"""What makes tables and plots of results that are kept: of their JSON alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from mctskernel.experiments import races, strategy_report
from mctskernel.experiments.ablation.results import Results as Ablated
from mctskernel.experiments.ablation.tables import render
from mctskernel.experiments.records.documents import Document, markdown
from mctskernel.experiments.records.provenance import Rows
from mctskernel.experiments.suites import rules_table
from mctskernel.experiments.suites.table import TableRow, markdown_table
from mctskernel.experiments.surrogate import document as surrogate_document
from mctskernel.gauntlet import run as gauntlet
from mctskernel.gauntlet import table as gauntlet_table

T = TypeVar("T")

Renderer = Callable[[Path], bytes]
"""Takes the folder of the results and gives the file's bytes."""


def rendered_from(data: str, kind: type[T], render: Callable[[T], str]) -> Renderer:
    """A renderer that decodes the JSON `data` and writes text."""

    def rendered(folder: Path) -> bytes:
        return render(msgspec.json.decode((folder / data).read_bytes(), type=kind)).encode()

    return rendered


def page(data: str) -> Mapping[str, Renderer]:
    """The renderer of JSON that is a document: its Markdown, beside it."""
    return {data.replace(".json", ".md"): rendered_from(data, Document, lambda each: markdown(each) + "\n")}


def plotted(data: str, kind: type[T], draw: Callable[[T, Path], None]) -> Renderer:
    """A renderer that decodes the JSON `data` and draws an SVG."""

    def rendered(folder: Path) -> bytes:
        decoded = msgspec.json.decode((folder / data).read_bytes(), type=kind)
        return _drawn(lambda out: draw(decoded, out))

    return rendered


def _drawn(draw: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "plot.svg")
        draw(out)
        return out.read_bytes()


def of_suite(name: str) -> Mapping[str, Renderer]:
    """The table of the suite's JSON, by the name of both."""
    return {f"{name}.md": lambda folder: markdown_table(_suite_rows(folder, f"{name}.json")).encode()}


def _suite_rows(folder: Path, name: str) -> list[TableRow]:
    return msgspec.json.decode((folder / name).read_bytes(), type=Rows[TableRow]).rows


def rules_page(folder: Path) -> bytes:
    """The page of the tasks that rules were written for, beside the suite's."""
    later, before = (_suite_rows(folder, f"{name}_h100.json") for name in ("rules", "suite"))
    return rules_table.rules_page(later, before).encode()


def strategies_plot(folder: Path) -> bytes:
    """The plot of the report on strategies."""
    return _drawn(lambda out: strategy_report.plot_report(strategy_report.read_report(folder), out))


def of_ablation(name: str) -> Mapping[str, Renderer]:
    """The table and the plot of an ablation's JSON, by the name of all three."""
    data = f"{name}.json"
    return {
        f"{name}.md": rendered_from(data, Ablated, lambda each: render(each).markdown),
        f"{name}.svg": plotted(data, Ablated, _ablation_plot),
    }


def _ablation_plot(results: Ablated, out: Path) -> None:
    # Imported here: matplotlib is an extra.
    from mctskernel.experiments.ablation.plots import plot  # noqa: PLC0415 - as said above

    plot(results, out)


def of_surrogate_study(name: str) -> Mapping[str, Renderer]:
    """The page and the plot of a surrogate study's JSON, by the name of all three."""
    data = f"{name}.json"
    return {
        f"{name}.md": rendered_from(
            data,
            surrogate_document.Study,
            lambda each: markdown(surrogate_document.document(each)) + "\n",
        ),
        f"{name}.svg": plotted(data, surrogate_document.Study, _surrogate_plot),
    }


def _surrogate_plot(study: surrogate_document.Study, out: Path) -> None:
    # Imported here: matplotlib is an extra.
    from mctskernel.experiments.surrogate.plot import draw  # noqa: PLC0415 - as said above

    draw(study, out)


def of_gauntlet(name: str) -> Mapping[str, Renderer]:
    """The table of a gauntlet's JSON, by the name of both."""
    return {f"{name}.md": rendered_from(f"{name}.json", gauntlet.Report, gauntlet_table.markdown)}


def of_races(name: str) -> Mapping[str, Renderer]:
    """The table of planted races, by the name of its JSON and of it."""
    return {f"{name}.md": rendered_from(f"{name}.json", races.Report, lambda each: races.table(each) + "\n")}
