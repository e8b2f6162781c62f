"""The choice of experts: relevant ones at first, later those that gained, and none excluded for ever."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.experts import EXPERTS, choose, chosen_experts


def bound_by(bottleneck: Bottleneck) -> Diagnosis:
    return Diagnosis((Cause(bottleneck, 0.6, "It binds."),))


def asked(standings: Mapping[str, Sequence[float]], diagnosis: Diagnosis | None = None) -> Counter[str]:
    """How often each arm comes first, over 400 seeds."""
    return Counter(
        choose(EXPERTS, standings, diagnosis, 1, np.random.default_rng(seed))[0].name for seed in range(400)
    )


def test_every_bottleneck_has_an_expert() -> None:
    assert set(Bottleneck) == set().union(*(expert.relieves for expert in EXPERTS))


def test_without_results_the_diagnosis_decides_and_excludes_none() -> None:
    counts = asked({}, bound_by(Bottleneck.BANK_CONFLICTS))
    assert counts.most_common(1)[0][0] == "memory"
    assert set(counts) == {expert.name for expert in EXPERTS}
    alike = asked({})
    assert min(alike.values()) > 0.5 * max(alike.values())


@pytest.mark.parametrize("text", ["", "nobody"])
def test_an_expert_that_does_not_exist_is_a_sentence(text: str) -> None:
    with pytest.raises(MisuseError, match=r"expert.*\."):
        chosen_experts((text,))
