"""The files that show what a sweep came to, all made of its results."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mctskernel.experiments.ablation.results import Results
from mctskernel.experiments.ablation.tables import render


def write_tables(out: Path, results: Results) -> tuple[Path, ...]:
    """Write table.md, table.tex, table.csv, and plot.svg and plot.pdf where matplotlib is installed. Raises OSError."""
    tables = render(results)
    texts = {"table.md": tables.markdown, "table.tex": tables.latex, "table.csv": tables.csv}
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    written = [out / name for name in texts]
    if find_spec("matplotlib") is not None:
        # Imported here: it needs the extra.
        from mctskernel.experiments.ablation.plots import plot  # noqa: PLC0415 - as said above

        plots = (out / "plot.svg", out / "plot.pdf")
        plot(results, *plots)
        written += plots
    return tuple(written)
