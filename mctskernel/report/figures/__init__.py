"""Figures of runs for papers, drawn with matplotlib, which is the extra `plots`."""

from __future__ import annotations

from collections.abc import Mapping

FIGURES: Mapping[str, str] = {
    "evaluations": "the best speed-up so far against evaluations, of a folder of runs their mean",
    "seconds": "the same against seconds of search",
    "money": "the same against dollars paid to models",
    "tree": "one run's tree: colour by speed-up, shape by outcome, size by visits, the best path told beneath",
    "roofline": "one run's kernels and its best path under the GPU's ceilings: of arithmetic, or of instructions",
    "outcomes": "how the evaluations of each run ended",
    "edits": "of each kind of edit: how often it made a kernel faster, with its interval, and by how much",
    "comparison": "the speed-up of each run with its interval, and that at held-out shapes",
}
"""What each figure shows."""
