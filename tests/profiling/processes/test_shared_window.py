"""Shared memory between two processes: what one writes the other reads, and what was reserved keeps its place."""

import fcntl
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.profiling.processes.shared_window import SharedWindow
from mctskernel.profiling.ptx_text import variables


@given(st.lists(st.binary(max_size=20_000), min_size=1, max_size=8))
def test_arrays_keep_their_place_while_the_window_grows(contents: list[bytes]) -> None:
    window = SharedWindow()
    offsets = [window.put(np.frombuffer(each, np.uint8)) for each in contents]
    found = [bytes(window.bytes_at(at, len(each))) for at, each in zip(offsets, contents, strict=True)]
    assert found == contents
    window.close()
    window.close()


def test_the_other_side_sees_what_is_written_and_writes_back() -> None:
    window = SharedWindow()
    offset = window.put(np.arange(5, dtype=np.float32))
    other = SharedWindow(os.dup(window.fd))
    there = other.array_at(offset, np.dtype(np.float32), (5,))
    assert there.tolist() == [0, 1, 2, 3, 4]
    there[2] = 9
    assert window.array_at(offset, np.dtype(np.float32), (5,))[2] == 9


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1 << 20), (-1, 4), (4096, 1), (0, -1)])
def test_bytes_that_are_not_there_are_refused(offset: int, nbytes: int) -> None:
    window = SharedWindow()
    window.reserve(10)
    with pytest.raises(ValueError, match="has no bytes"):
        window.bytes_at(offset, nbytes)


def test_the_variables_of_a_ptx_module_are_those_that_outlive_a_launch() -> None:
    ptx = """
.visible .global .align 4 .b8 seen[16384];
.global .align 4 .f32 table[2] = {0f3F800000, 0f40000000};
.extern .shared .align 16 .b8 tile[];
.const .align 4 .b8 fixed[8];
.visible .entry k(
    .param .u64 k_param_0
)
{
    ld.global.f32 %f1, [%rd1];
    st.global.f32 [%rd1], %f1;
}
"""
    assert variables(ptx) == ("seen", "table", "fixed")


@pytest.mark.parametrize(("nbytes", "size"), [(0, 1), (4096, 0), (4096, 1 << 20)])
def test_a_child_cannot_shrink_a_window_and_a_fixed_one_keeps_its_size(nbytes: int, size: int) -> None:
    window = SharedWindow(nbytes=nbytes)
    window.put(np.zeros(4096, np.uint8))
    with pytest.raises(PermissionError):
        os.ftruncate(window.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(window.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    window.close()
