"""The model of edits with other constants: what its defaults were chosen among, and what each part of it contributes.

They are no choices of a policy: nobody has to set them, and a search that was begun with some can't be resumed with
others. An experiment may, so they are set where the model reads them, for as long as a search takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np

from mctskernel.edits.parameters import ParameterProposer
from mctskernel.tree.vector import Array

MODEL = "mctskernel.tree.edit_model"


class VariationError(ValueError):
    """A variation that doesn't exist; the message is a sentence."""


@dataclass(frozen=True)
class Constant:
    """A name of a module, and what it stands for."""

    module: str
    name: str
    value: object


def probability_of_improvement(means: Array, deviations: Array, best: float) -> Array:
    """The logistic function that is nearest to the normal distribution's.

    Source: Kushner, "A new method of locating the maximum point of an arbitrary multipeak curve", 1964.
    """
    likely: Array = 1 / (1 + np.exp(-1.702 * (means - best) / deviations))
    return likely


def upper_confidence_bound(means: Array, deviations: Array, best: float) -> Array:  # noqa: ARG001 - an acquisition
    """Mean plus 1.5 standard deviations, as a positive number.

    Source: Srinivas et al., "Gaussian process optimization in the bandit setting", 2010.
    """
    bound: Array = np.exp(means + 1.5 * deviations)
    return bound


def greatest_mean(means: Array, deviations: Array, best: float) -> Array:  # noqa: ARG001 - an acquisition
    """Nothing for what is uncertain."""
    alone: Array = np.exp(means)
    return alone


def _weights(main: float, pairs: float, whole: float, noise: float = 0.003) -> Constant:
    return Constant(f"{MODEL}.fitting", "WEIGHTS", (main, pairs, whole, noise))


def _acquisition(function: Callable[[Array, Array, float], Array]) -> Constant:
    return Constant(f"{MODEL}.model", "expected_improvement", function)


NOTHING = 1e-8
"""As good as no weight: the fit moves one by a factor of a hundred at the most."""

VARIATIONS: Mapping[str, Constant] = {
    "form=main": _weights(1.0, NOTHING, NOTHING),
    "form=main+pairs": _weights(1.0, 1.0, NOTHING),
    "form=whole": _weights(NOTHING, NOTHING, 1.0),
    "length=0.3": Constant(f"{MODEL}.fitting", "LENGTH", 0.3),
    "length=1.5": Constant(f"{MODEL}.fitting", "LENGTH", 1.5),
    "noise=0.0003": _weights(1.0, 1.0, 0.5, 0.0003),
    "noise=0.03": _weights(1.0, 1.0, 0.5, 0.03),
    "fit=never": Constant(f"{MODEL}.fitting", "ITERATIONS", 0),
    "acquisition=probability": _acquisition(probability_of_improvement),
    "acquisition=bound": _acquisition(upper_confidence_bound),
    "acquisition=mean": _acquisition(greatest_mean),
}
"""One thing different each. Form: which parts of the covariance there are."""

JUMPS_OF: Mapping[str, Callable[..., ParameterProposer]] = {
    **{f"jumps={count}": partial(ParameterProposer, jumps=count) for count in (0, 64)},
    **{f"first_jumps={count}": partial(ParameterProposer, first_jumps=count) for count in (16, 1024)},
}
"""Other proposers: how many configurations of a reply are drawn from the whole space."""


def settings_of(contender: str) -> str:
    """A contender without its variation. Raises VariationError."""
    settings, _, name = contender.partition("@")
    if name and name not in (*VARIATIONS, *JUMPS_OF):
        known = ", ".join((*VARIATIONS, *JUMPS_OF))
        raise VariationError(f"There is no variation '{name}'; it must be one of {known}.")
    return settings


@contextmanager
def varied(contender: str) -> Iterator[Callable[..., ParameterProposer]]:
    """With a contender's variation in place; gives what makes the proposer of a space and a seed."""
    name = contender.partition("@")[2]
    with ExitStack() as stack:
        if name in VARIATIONS:
            constant = VARIATIONS[name]
            module = importlib.import_module(constant.module)
            stack.enter_context(patch.object(module, constant.name, constant.value))
        yield JUMPS_OF.get(name, ParameterProposer)
