"""Sums that operators hide, found without computing any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from mctskernel.problems.kernelbench.probing import LongestReduction

pytestmark = pytest.mark.slow

Function = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda x: functional.layer_norm(x, (32,)), 32),
        (functional.instance_norm, 32),
        (lambda x: functional.batch_norm(x, None, None, training=True), 8 * 32),
        (lambda x: functional.softmax(x, 1), 64),
        (lambda x: functional.scaled_dot_product_attention(x, x, x), 64),
        (lambda x: x.cumsum(1), 64),
        (functional.gelu, 1),
        (lambda x: x @ x.transpose(1, 2), 1),
    ],
)
def test_the_longest_sum_of_an_operator(function: Function, numbers: int) -> None:
    with LongestReduction() as sums:
        function(torch.empty(8, 64, 32, device="meta"))
    assert sums.longest == numbers
