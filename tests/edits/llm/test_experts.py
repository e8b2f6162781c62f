"""The choice of experts: relevant ones at first, later those that gained, and none excluded for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from mctskernel.core.evaluation import Bottleneck, Cause, Diagnosis
from mctskernel.edits.llm.experts import (
    EXPERTS,
    PRIOR_LOG_GAIN,
    ExpertError,
    choose,
    chosen_experts,
    draw,
)

ARMS = [expert.arm for expert in EXPERTS]


def bound_by(bottleneck: Bottleneck) -> Diagnosis:
    return Diagnosis((Cause(bottleneck, 0.6, "It binds."),))


def asked(standings: Mapping[str, Sequence[float]], diagnosis: Diagnosis | None = None) -> Counter[str]:
    """How often each arm comes first, over 400 seeds."""
    return Counter(
        choose(ARMS, standings, diagnosis, 1, np.random.default_rng(seed))[0].name for seed in range(400)
    )


def test_every_bottleneck_has_an_expert() -> None:
    assert set(Bottleneck) == set().union(*(expert.relieves for expert in EXPERTS))


def test_without_results_the_diagnosis_decides_and_excludes_none() -> None:
    counts = asked({}, bound_by(Bottleneck.BANK_CONFLICTS))
    assert counts.most_common(1)[0][0] == "llm/memory"
    assert set(counts) == {arm.name for arm in ARMS}
    alike = asked({})
    assert min(alike.values()) > 0.5 * max(alike.values())


def test_an_expert_that_gained_is_asked_more_often() -> None:
    counts = asked({arm.name: (0.0,) * 10 for arm in ARMS} | {"llm/numerics": (0.4, 0.0) * 5})
    assert counts["llm/numerics"] > 0.8 * counts.total()
    assert len(counts) > 1


def test_the_bottleneck_still_counts_after_many_results() -> None:
    standings = {arm.name: (0.1,) * 200 for arm in ARMS}
    assert asked(standings, bound_by(Bottleneck.SPECIAL_FUNCTIONS))["llm/numerics"] > 350


def test_several_are_different_ones() -> None:
    chosen = choose(ARMS, {}, None, 3, np.random.default_rng(0))
    assert len({arm.name for arm in chosen}) == 3
    assert len(choose(ARMS, {}, None, 99, np.random.default_rng(0))) == len(ARMS)


def test_a_draw_has_the_mean_of_the_posterior() -> None:
    rng = np.random.default_rng(0)
    assert np.mean([draw((), rng) for _ in range(20_000)]) == pytest.approx(PRIOR_LOG_GAIN, rel=0.05)
    assert np.mean([draw((0.5,) * 3_000, rng) for _ in range(2_000)]) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("text", "model", "temperature"),
    [
        ("memory", "", None),
        ("memory=qwen3-coder:30b", "qwen3-coder:30b", None),
        ("memory@0.7", "", 0.7),
        ("memory=a/b@2024@1", "a/b@2024", 1.0),
        ("memory=a/b@latest", "a/b@latest", None),
    ],
)
def test_an_expert_is_read_with_its_model_and_temperature(
    text: str, model: str, temperature: float | None
) -> None:
    (expert,) = chosen_experts((text,))
    assert (expert.name, expert.model, expert.temperature) == ("memory", model, temperature)


@pytest.mark.parametrize("text", ["", "nobody", "memory@3", "=model", "memory@nan"])
def test_an_expert_that_does_not_exist_is_a_sentence(text: str) -> None:
    with pytest.raises(ExpertError, match=r"expert.*\."):
        chosen_experts((text,))
