"""Vectors of 16 bytes: how many elements of a type they hold, and the text that moves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mctskernel.core.evaluation import Bottleneck

VECTOR_BYTES = 16
"""The most that one thread loads or stores with one instruction."""

RELIEVED_BY_VECTORS = frozenset(
    {
        Bottleneck.DRAM_BANDWIDTH,
        Bottleneck.GLOBAL_LATENCY,
        Bottleneck.L1_THROUGHPUT,
        Bottleneck.INSTRUCTION_ISSUE,
        Bottleneck.INTEGER_PIPE,
    }
)
"""What a thread's wider accesses relieve, and what their fewer instructions do."""

ELEMENT_BYTES: Mapping[str, int] = {
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "int8_t": 1,
    "uint8_t": 1,
    "__half": 2,
    "half": 2,
    "__nv_bfloat16": 2,
    "nv_bfloat16": 2,
    "float": 4,
    "int": 4,
    "unsigned": 4,
    "unsigned int": 4,
    "int32_t": 4,
    "uint32_t": 4,
}
"""Sizes of the element types that vectors are made of."""

_VECTORS: Mapping[str, str] = {"float": "float4", "int": "int4", "int32_t": "int4"}

ALIGNED = """
// Whether 16 bytes may be read or written there at once.
__device__ bool {name}(const void* address) {{
    return reinterpret_cast<size_t>(address) % 16 == 0;
}}
"""


@dataclass(frozen=True)
class Vector:
    """`lanes` elements of `type` at an address that is a multiple of 16 bytes, kept in the array `name`.

    `address` is the text of a pointer to the first of them. Their bytes must be a multiple of 16.
    """

    type: str
    lanes: int
    name: str
    address: str

    @property
    def declaration(self) -> str:
        """The array in registers."""
        return f"alignas(16) {self.type} {self.name}[{self.lanes}];"

    @property
    def loads(self) -> tuple[str, ...]:
        """From memory to the array."""
        return self._moves(self.name, self.address)

    @property
    def stores(self) -> tuple[str, ...]:
        """From the array to memory."""
        return self._moves(self.address, self.name)

    def _moves(self, target: str, source: str) -> tuple[str, ...]:
        vector = vector_type(self.type)
        pieces = self.lanes * ELEMENT_BYTES[self.type] // VECTOR_BYTES
        whole = f"*reinterpret_cast<{vector}*>({target}) = *reinterpret_cast<const {vector}*>({source});"
        if pieces == 1:
            return (whole,)
        return tuple(
            f"reinterpret_cast<{vector}*>({target})[{piece}] = "
            f"reinterpret_cast<const {vector}*>({source})[{piece}];"
            for piece in range(pieces)
        )


def vector_type(element: str) -> str:
    """The built-in type of 16 bytes that elements of a type move as."""
    return _VECTORS.get(element, "uint4")


def lanes_for(elements: Iterable[str]) -> int:
    """Elements that a thread takes at once, so that the smallest of the types fills a vector."""
    return max(VECTOR_BYTES // ELEMENT_BYTES[element] for element in elements)
