"""Figures of runs for papers, drawn with matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Mapping

FIGURES: Mapping[str, str] = {
    "evaluations": "the best speed-up so far against evaluations; for a folder of runs, their mean",
    "seconds": "the same against seconds of search",
    "money": "the same against dollars paid for language models",
    "tree": "the tree of one run: colour by speed-up, shape by outcome, size by visits, with the best path in words",
    "roofline": "the kernels of one run under the GPU's ceilings of arithmetic or of instructions",
    "outcomes": "the outcomes of the evaluations of each run",
    "comparison": "the speed-up of each run with its interval, and the one at held-out shapes",
}
"""What each figure shows."""
