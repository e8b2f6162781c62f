"""What the digests' kernel is made of, without a GPU."""

from __future__ import annotations

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import BuildFailure, build
from mctskernel.profiling.gpu.digests import SOURCE


@pytest.mark.parametrize(("architecture", "demotes"), [("sm_75", False), ("sm_80", True), ("sm_90", True)])
def test_a_digest_gives_up_what_a_kernel_reserves_of_the_cache(architecture: str, demotes: bool) -> None:
    made = build(Kernel(SOURCE), ("digest",), architecture)
    assert not isinstance(made, BuildFailure), made.log
    assert ("applypriority.global.L2::evict_normal" in made.ptx) is demotes
