"""Figures of runs for papers, drawn with matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Mapping

FIGURES: Mapping[str, str] = {
    "evaluations": "the best speed-up so far against evaluations; for a folder of runs, their mean",
    "seconds": "the same against seconds of search",
    "money": "the same against dollars paid for language models",
    "tree": "the tree of one run: colour by speed-up, shape by outcome, size by visits, with the best path in words",
}
"""What each figure shows."""
