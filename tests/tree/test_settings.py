"""Settings: lines that set fields of a policy, and the sentences for those that can't."""

from __future__ import annotations

import pytest

from mctskernel.tree.choices import with_settings
from mctskernel.tree.policy import Policy, PolicyError


def test_settings_set_names_and_numbers_and_the_last_one_counts() -> None:
    lines = ["selection=uct", "exploration=2", "patience=3", "exploration=0.5"]
    assert with_settings(Policy(order="arrival"), lines) == Policy(
        order="arrival", selection="uct", exploration=0.5, patience=3
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("patience", "write NAME=VALUE"),
        ("=3", "There is no choice ''"),
        ("__class__=3", "There is no choice '__class__'"),
        ("selection=best", "it must be one of uct, puct, greedy"),
        ("patience=1.5", "a whole number"),
        ("exploration=much", "a number"),
        ("exploration=nan", "0 or more"),
        ("exploration=1e999", "a number"),
        ("patience=0", "1 or more"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        with_settings(Policy(), [line])
