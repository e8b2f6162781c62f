"""Counting asks for the contents of a buffer only where they decide an address or who branches."""

import numpy as np
import pytest

from mctskernel.profiling.emulator import Geometry, GlobalMemory, count
from tests.profiling.emulator.launching import Compiler


def needs(cuda: Compiler, body: str, **contents: np.ndarray) -> tuple[str, ...]:
    """The buffers that counting a block asks for; those without contents have none."""
    head = 'extern "C" __global__ void k(const float* a, const int* n, float* b, float* c)'
    module = cuda(f"{head} {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}")
    memory = GlobalMemory()
    arguments = [
        memory.add(name, contents.get(name, 1 << 20), virtual=name not in contents) for name in "anbc"
    ]
    counts = count(module, "k", Geometry((4, 1, 1), (64, 1, 1)), arguments, memory)
    assert not counts.findings
    return counts.needs


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("b[i] = a[i];", ()),
        ("b[i] = logf(a[i]);", ()),
        ("float x = a[i]; for (int j = 0; j < 9; ++j) x = logf(x); b[i] = x;", ()),
        ("b[i] = a[i]; c[i] = b[i];", ()),
        ("b[i] = a[n[i]];", ("n",)),
    ],
)
def test_an_index_is_asked_for_and_values_alone_are_not(
    cuda: Compiler, body: str, asked: tuple[str, ...]
) -> None:
    assert needs(cuda, body) == asked


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("b[i] = a[i]; __threadfence(); c[(int)b[i + 1]] = 1.0f;", ("a",)),
        ("float* d = i % 2 ? b : c; d[i] = a[i]; __threadfence(); c[(int)b[i + 1]] = 1.0f;", ("a",)),
        ("__shared__ float s[64]; s[threadIdx.x] = a[i]; __syncthreads(); b[(int)s[5]] = 1.0f;", ("a",)),
    ],
)
def test_a_stored_value_that_becomes_an_index_is_asked_for(
    cuda: Compiler, body: str, asked: tuple[str, ...]
) -> None:
    assert set(asked) <= {*needs(cuda, body), *needs(cuda, body, b=np.zeros(1 << 10, np.float32))}


@pytest.mark.parametrize(
    "body",
    [
        "if (a[i] > 0) b[i] = 1.0f;",
        "float x = a[i]; while (x > 1) x *= 0.5f; b[i] = x;",
        "int j = i; if (a[i] > 0) j += i * n[5] + 3; b[j] = 1.0f;",
        "if (a[i] > 0) __syncthreads(); b[i] = 1.0f;",
    ],
)
def test_a_branch_that_matters_asks_for_what_decides_it(cuda: Compiler, body: str) -> None:
    assert needs(cuda, body) != ()
