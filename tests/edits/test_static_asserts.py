"""Assertions over macros are decided without a compiler; others may hold."""

from __future__ import annotations

import pytest

from mctskernel.edits.rules.static_asserts import asserts_hold
from mctskernel.edits.syntax import parse

from .conftest import Propose

MACROS = {"BM": 64, "TM": 4, "VEC": 4}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("BM % TM == 0", True),
        ("BM % 3 == 0", False),
        ("BM % TM == 0 && TM % (2 * VEC) == 0", False),
        ("(BM / TM) >= 16", True),
        ("(BM / TM) > 16", False),
        ("sizeof(tile) >= 1024", True),
        ("BM % UNKNOWN == 0", True),
        ("BM % 0 == 0", True),
        ("is_power_of_two(BM)", True),
    ],
)
def test_what_is_arithmetic_is_decided(condition: str, holds: bool) -> None:
    source = parse(f'void f() {{ static_assert({condition}, "because"); }}')
    assert asserts_hold(source, MACROS) is holds


def test_values_that_an_assertion_forbids_are_not_proposed(propose: Propose, with_plan_text: object) -> None:
    assert callable(with_plan_text)
    code = """\
#define BLOCK 64
extern "C" __global__ void f(const float* x, float* out, int rows, int cols) {
    static_assert(BLOCK >= 64, "two warps");
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < rows * cols) {
        out[i] = x[i];
    }
}
"""
    source = with_plan_text(code, grid='"ceil_div(rows * cols, BLOCK)"', block='"BLOCK"')
    assert propose("smaller-blocks", source) == {}
    assert "BLOCK 64 -> 32" in propose("smaller-blocks", source.replace("BLOCK >= 64", "BLOCK >= 32"))
