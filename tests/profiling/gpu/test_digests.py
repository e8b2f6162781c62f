"""Digests of memory on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, open_gpu
from mctskernel.profiling.gpu.device_kernels import Digests, Segment

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def digests() -> Digests:
    return Digests(open_gpu().architecture)


@pytest.mark.parametrize(("start", "nbytes"), [(0, 1 << 20), (4, 1000), (12, 5), (8, 40), (0, 1)])
def test_a_digest_changes_with_every_byte_and_with_no_other(
    digests: Digests, start: int, nbytes: int
) -> None:
    buffer = DeviceBuffer((1 << 20) + 64)
    contents = np.random.default_rng(1).integers(0, 256, buffer.nbytes).astype(np.uint8)
    buffer.write(contents)
    segment = [Segment(buffer.address + start, nbytes)]
    before = digests.now(segment)
    assert digests.now(segment) == before
    inside = {0, nbytes - 1, nbytes // 2, min(nbytes - 1, 15), min(nbytes - 1, 16)}
    for place in inside:
        buffer.write(contents[start + place : start + place + 1] ^ 1, start + place)
        assert digests.now(segment) != before, place
        buffer.write(contents)
    buffer.write(contents[start + nbytes :] ^ 255, start + nbytes)
    assert digests.now(segment) == before
    buffer.free()
