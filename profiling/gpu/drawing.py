"""Inputs of large shapes, drawn on a GPU by a counter-based generator (Philox4x32-10; Salmon et al. 2011).

An element depends on the key and its place alone. So a GPU process draws inputs where kernels read them, and the
search draws the elements that expected outputs need again: all of them or a few, in numpy or PyTorch, bit by bit. For
that, values are made of integers, products and sums in float32; a normal distribution is a table of its quantiles,
interpolated between them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from mctskernel.core.dtypes import numpy_dtype
from mctskernel.core.task import Array, Shape, Tensor
from mctskernel.profiling.gpu.cuda_driver import DeviceBuffer, PreparedLaunch, multiprocessors
from mctskernel.profiling.gpu.device_kernels import own_kernel
from mctskernel.profiling.gpu.protocol import Drawing

TABLE_BITS = 12
"""The table of the normal distribution has so many intervals, as a power of two."""

PIECE = 1 << 24
"""How many elements PyTorch draws at once."""

CACHED_PIECE = 1 << 16
"""How many elements numpy draws at once: what they take on the way fits into a cache."""

_FLOATS = ("float32", "float16", "bfloat16")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_WORD = (1 << 32) - 1
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Cast = Callable[[Any, str], Any]
"""Converts an array to an element type."""


def drawing_of(tensor: Tensor, shape: Shape, *key: object) -> Drawing | None:
    """How an input is drawn at a shape by an independent, secret `key`; None where the generator can't."""
    low, high = tensor.limits(shape)
    if tensor.distribution == "integers":
        low, high = float(int(low)), float(int(high))
        if tensor.dtype not in (*_FLOATS, *_INTEGERS) or not 0 <= high - low <= _WORD:
            return None
    elif tensor.dtype not in _FLOATS:
        return None
    text = "/".join(map(str, (*key, tensor.name)))
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return Drawing(number, tensor.dtype, tensor.distribution, low, high)


def drawn(drawing: Drawing, places: Array) -> Array:
    """The elements at some places of the flattened input, as an array of the shape of `places`."""
    flat, table = places.reshape(-1), normal_table()
    found = np.empty(len(flat), numpy_dtype(drawing.dtype))
    for start in range(0, len(flat), CACHED_PIECE):
        piece = flat[start : start + CACHED_PIECE].astype(np.int64, copy=False)
        found[start : start + CACHED_PIECE] = _elements(drawing, piece, _cast_in_numpy, table)
    return found.reshape(places.shape)


def drawn_tensor(drawing: Drawing, places: Any, device: str) -> Any:
    """The elements at some places of the flattened input, as a tensor of PyTorch without further extents."""
    import torch  # noqa: PLC0415 - only who computes expected outputs with it needs it

    def cast(tensor: Any, dtype: str) -> Any:
        return tensor.to(getattr(torch, dtype))

    table = torch.from_numpy(normal_table()).to(device)
    flat = places if isinstance(places, range) else places.reshape(-1)
    found = torch.empty(len(flat), dtype=getattr(torch, drawing.dtype), device=device)
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        at = (
            torch.arange(piece.start, piece.stop, device=device)
            if isinstance(piece, range)
            else torch.as_tensor(piece, device=device)
        )
        found[start : start + PIECE] = _elements(drawing, at, cast, table)
    return found


@functools.cache
def normal_table() -> Array:
    """The quantiles of the normal distribution between which numbers are interpolated; symmetric."""
    count = 1 << TABLE_BITS
    normal = NormalDist()
    quantiles = [normal.inv_cdf(max(each, 0.05) / count) for each in range(count // 2)]
    return np.array([*quantiles, 0.0, *(-each for each in reversed(quantiles))], np.float32)


def _cast_in_numpy(array: Array, dtype: str) -> Array:
    return array.astype(numpy_dtype(dtype))


def _elements(drawing: Drawing, places: Any, cast: Cast, table: Any) -> Any:
    """Of arrays of numpy or PyTorch: both have the same operators, with the same roundings."""
    found = _ordinary(drawing, places, cast, table)
    if drawing.every:
        found[places % drawing.every == drawing.first] = drawing.special
    return found


def _ordinary(drawing: Drawing, places: Any, cast: Cast, table: Any) -> Any:
    first, lane = places[::4], places & 3
    if len(places) % 4 == 0 and all(bool((places[at::4] == (first | 3) - 3 + at).all()) for at in range(4)):
        # Whole blocks, as most places are: four elements follow from the words of each.
        word = places * 0
        for number, each in enumerate(_words(first >> 2, drawing.key)):
            word[number::4] = each
    else:
        words = _words(places >> 2, drawing.key)
        word = sum(each * (lane == number) for number, each in enumerate(words))
    if drawing.distribution == "integers":
        least = int(drawing.low)
        values = (word * (int(drawing.high) - least + 1) >> 32 & _WORD) + least
        return cast(cast(values, "float32") if drawing.dtype in _FLOATS else values, drawing.dtype)
    if drawing.distribution == "uniform":
        low, span = _ends(drawing)
        return cast(cast(word >> 8, "float32") * 2.0**-24 * span + low, drawing.dtype)
    bits = 32 - TABLE_BITS
    below = table[word >> bits]
    fraction = cast(word & (1 << bits) - 1, "float32") * 2.0**-bits
    return cast((table[(word >> bits) + 1] - below) * fraction + below, drawing.dtype)


def _words(block: Any, key: int) -> tuple[Any, Any, Any, Any]:
    """The four random words of each block. 64-bit products may wrap around: the bits that are used are right."""
    a, b, c, d = block & _WORD, block >> 32, block * 0, block * 0
    first, second = key & _WORD, key >> 32
    for _ in range(_ROUNDS):
        one, other = a * _FACTORS[0], c * _FACTORS[1]
        a, b, c, d = (
            (other >> 32 & _WORD) ^ b ^ first,
            other & _WORD,
            (one >> 32 & _WORD) ^ d ^ second,
            one & _WORD,
        )
        first, second = first + _STEPS[0] & _WORD, second + _STEPS[1] & _WORD
    return a, b, c, d


def _ends(drawing: Drawing) -> tuple[float, float]:
    """The lower end of a range and its width, in float32."""
    low = np.float32(drawing.low)
    return float(low), float(np.float32(drawing.high) - low)


THREADS = 256

SOURCE = f"""
struct Words {{ unsigned each[4]; }};

__device__ Words words(unsigned long long block, unsigned long long key) {{
    unsigned a = (unsigned)block, b = (unsigned)(block >> 32), c = 0, d = 0;
    unsigned first = (unsigned)key, second = (unsigned)(key >> 32);
    #pragma unroll
    for (int i = 0; i < {_ROUNDS}; ++i) {{
        const unsigned one = __umulhi({_FACTORS[0]}u, a), other = __umulhi({_FACTORS[1]}u, c);
        const unsigned low = {_FACTORS[0]}u * a;
        a = other ^ b ^ first; b = {_FACTORS[1]}u * c; c = one ^ d ^ second; d = low;
        first += {_STEPS[0]}u; second += {_STEPS[1]}u;
    }}
    return Words{{{{a, b, c, d}}}};
}}

__device__ void store(unsigned char* out, unsigned long long place, float value, int type) {{
    if (type == 0) {{
        reinterpret_cast<float*>(out)[place] = value;
    }} else if (type == 1) {{
        unsigned short half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        reinterpret_cast<unsigned short*>(out)[place] = half;
    }} else {{
        const unsigned bits = __float_as_uint(value);
        reinterpret_cast<unsigned short*>(out)[place] = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }}
}}

extern "C" __global__ void __launch_bounds__({THREADS}) draw(
    unsigned char* out, unsigned long long count, unsigned long long key, int distribution, int type, float low,
    float span, long long least, unsigned long long values, const float* table, float special,
    unsigned long long every, unsigned long long first
) {{
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long block = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; 4 * block < count;
         block += step) {{
        const Words found = words(block, key);
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {{
            const unsigned long long place = 4 * block + lane;
            const unsigned word = found.each[lane];
            if (place >= count) break;
            if (distribution == 2) {{
                const long long value = least + (long long)(word * values >> 32);
                switch (type) {{
                    case 3: out[place] = (unsigned char)value; break;
                    case 4: reinterpret_cast<short*>(out)[place] = (short)value; break;
                    case 5: reinterpret_cast<int*>(out)[place] = (int)value; break;
                    case 6: reinterpret_cast<long long*>(out)[place] = value; break;
                    default: store(out, place, __ll2float_rn(value), type);
                }}
            }} else if (distribution == 1) {{
                const float unit = __uint2float_rn(word >> 8) * 0x1p-24f;
                store(out, place, __fadd_rn(__fmul_rn(unit, span), low), type);
            }} else {{
                const int bits = {32 - TABLE_BITS};
                const unsigned at = word >> bits;
                const float fraction = __uint2float_rn(word & (1u << bits) - 1) * (1.0f / (1u << bits));
                const float below = table[at], between = __fsub_rn(table[at + 1], below);
                store(out, place, __fadd_rn(__fmul_rn(between, fraction), below), type);
            }}
            if (every && place % every == first) store(out, place, special, type);
        }}
    }}
}}
"""

_DISTRIBUTIONS = {"normal": 0, "uniform": 1, "integers": 2}
_TYPES = {
    **{name: number for number, name in enumerate(_FLOATS)},
    **{name: 3 + {1: 0, 2: 1, 4: 2, 8: 3}[np.dtype(name).itemsize] for name in _INTEGERS},
}


class Drawer:
    """Draws inputs into memory of the GPU. Raises CudaError when the GPU has no room for its table."""

    def __init__(self, architecture: str) -> None:
        self._module = own_kernel(SOURCE, ("draw",), architecture)
        table = normal_table()
        self._table = DeviceBuffer(table.nbytes)
        self._table.write(table)
        self._blocks = 32 * multiprocessors()

    def __call__(self, drawing: Drawing, address: int, nbytes: int) -> None:
        """Draw all elements of an input that lies at an address, in stream order."""
        PreparedLaunch(
            self._module,
            "draw",
            grid=(self._blocks, 1, 1),
            block=(THREADS, 1, 1),
            arguments=arguments(drawing, address, nbytes, self._table.address),
        )()


def arguments(drawing: Drawing, address: int, nbytes: int, table: int) -> list[bytes]:
    """The arguments of `draw`, packed."""
    low, span = _ends(drawing) if drawing.distribution == "uniform" else (0.0, 0.0)
    return [
        np.uint64(address).tobytes(),
        np.uint64(nbytes // numpy_dtype(drawing.dtype).itemsize).tobytes(),
        np.uint64(drawing.key).tobytes(),
        np.int32(_DISTRIBUTIONS[drawing.distribution]).tobytes(),
        np.int32(_TYPES[drawing.dtype]).tobytes(),
        np.float32(low).tobytes(),
        np.float32(span).tobytes(),
        np.int64(drawing.low).tobytes(),
        np.uint64(max(0, int(drawing.high) - int(drawing.low) + 1)).tobytes(),
        np.uint64(table).tobytes(),
        np.float32(drawing.special).tobytes(),
        np.uint64(drawing.every).tobytes(),
        np.uint64(drawing.first).tobytes(),
    ]
