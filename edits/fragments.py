"""Products of 16-bit matrices on tensor cores, as device functions: `mma` on what `ldmatrix` brings to registers.

A lane's registers of a fragment are as in the PTX manual, "Matrix fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

TENSOR_TYPES: Mapping[str, str] = {
    "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "__half": "f16",
    "half": "f16",
}
"""How PTX calls the element types of CUDA C++."""

_FUNCTIONS = Template(
    r"""
// Four 8 x 8 matrices of 16-bit floats from shared memory; each lane names a row of eight.
__device__ void load_matrices(unsigned (&parts)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

// The same, each matrix transposed.
__device__ void load_transposed(unsigned (&parts)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row))) : "memory");
}

// Adds the product of a 16 x 16 and a 16 x 8 matrix on tensor cores.
__device__ void multiply(float (&sums)[4], const unsigned (&left)[4], unsigned right0, unsigned right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.$tensor_type.$tensor_type.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}
""".strip()
)


def fragment_functions(element: str) -> str:
    """`load_matrices`, `load_transposed` and `multiply` for elements of a type of TENSOR_TYPES."""
    return _FUNCTIONS.substitute(tensor_type=TENSOR_TYPES[element])
