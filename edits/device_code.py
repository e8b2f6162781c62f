"""CUDA C++ that rules write: files of `templates/` with a `$hole` for what differs, and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

from mctskernel.core.dtypes import CUDA_TYPES, DTYPE_BYTES

FOLDER = Path(__file__).parent / "templates"


def filled(template: str, **holes: str) -> str:
    """The text of a template with its holes filled."""
    return _read(template).substitute(holes)


@cache
def _read(template: str) -> Template:
    return Template((FOLDER / f"{template}.cu").read_text().rstrip("\n"))


VECTOR_BYTES = 16  # the most that one thread loads or stores with one instruction

_ELEMENTS = frozenset({"int8", "uint8", "float16", "bfloat16", "float32", "int32", "uint32"})
ELEMENT_BYTES = {name: DTYPE_BYTES[dtype] for name, dtype in CUDA_TYPES.items() if dtype in _ELEMENTS}
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
    """`lanes` elements of `type`, whole 16-byte words from the pointer `address` on, kept in the array `name`."""

    type: str
    lanes: int
    name: str
    address: str

    @property
    def declaration(self) -> str:
        return f"alignas(16) {self.type} {self.name}[{self.lanes}];"

    @property
    def loads(self) -> tuple[str, ...]:
        return self._moves(self.name, self.address)

    @property
    def stores(self) -> tuple[str, ...]:
        return self._moves(self.address, self.name)

    def _moves(self, target: str, source: str) -> tuple[str, ...]:
        vector = _VECTORS.get(self.type, "uint4")
        pieces = self.lanes * ELEMENT_BYTES[self.type] // VECTOR_BYTES
        whole = f"*reinterpret_cast<{vector}*>({target}) = *reinterpret_cast<const {vector}*>({source});"
        if pieces == 1:
            return (whole,)
        return tuple(
            f"reinterpret_cast<{vector}*>({target})[{piece}] = "
            f"reinterpret_cast<const {vector}*>({source})[{piece}];"
            for piece in range(pieces)
        )


def width_text(elements: Iterable[str]) -> str:
    """What to call 16-byte accesses to elements of these types: `float4`, `int4` or `16 bytes`."""
    names = {_VECTORS.get(element, "16 bytes") for element in elements}
    return names.pop() if len(names) == 1 else "16 bytes"


def lanes_for(elements: Iterable[str]) -> int:
    """Elements that a thread takes at once, so that the smallest of the types fills a vector."""
    return max(VECTOR_BYTES // ELEMENT_BYTES[element] for element in elements)
