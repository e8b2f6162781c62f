"""Triton's machine code decoded here against nvdisasm."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.profiling.machine_code.against_nvdisasm import check_against_nvdisasm
from tests.profiling.triton_programs import MATMUL, built, module, plan


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_a_triton_kernel_is_decoded_as_nvdisasm_has_it(architecture: str) -> None:
    tiles = {"BM": 64, "BN": 64, "BK": 32}
    source = module(MATMUL, "matmul", ["a", "b", "c", "m", "n", "k"], constexprs=tiles)
    dtypes = {"a": "float16", "b": "float16", "c": "float32"}
    shape = {"m": 128, "n": 128, "k": 128}
    (made,) = built(source, [plan(source, shape, dtypes)], dtypes, architecture).builds
    check_against_nvdisasm(made.cubin)
