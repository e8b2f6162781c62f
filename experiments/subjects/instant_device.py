"""A device that judges nothing and takes no time: what an evaluation on it takes is what carried it there and back.

Its evaluations are about as large as those of the model of a GPU.
"""

from __future__ import annotations

import random

from mctskernel.core.device import DeviceSpec
from mctskernel.core.evaluation import Evaluation
from mctskernel.core.kernel import Kernel
from mctskernel.experiments.subjects.grown_trees import made_up_evaluation


class InstantDevice:
    """Says the same of every kernel."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._evaluation = made_up_evaluation(random.Random(spec.seed))  # noqa: S311 - repeatable, not secret

    def evaluate(self, kernel: Kernel) -> Evaluation:  # noqa: ARG002 - it looks at nothing
        """What was made up when the device was opened."""
        return self._evaluation

    def fingerprint(self) -> dict[str, str]:
        """Nothing can be compared with this."""
        return {"device": "none"}
