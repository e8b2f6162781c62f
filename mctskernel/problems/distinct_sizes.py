"""Sizes by which dimensions are recognised where a size is only known as a number.

PyTorch writes the sizes that it compiled for as numbers. Compiling for different primes (`distinct_sizes`) makes each
number in the code recognisable as a product of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

SMALLEST = 19  # smaller numbers are not taken for sizes
_SMALLEST_NEIGHBOUR = 200  # from here on a number may also be a product of dimensions plus or minus 1


def distinct_sizes(sizes: Mapping[str, int], granularity: Mapping[str, int]) -> dict[str, int]:
    """For each dimension its granularity times a prime, not above its size where possible."""
    taken: set[int] = set()
    found: dict[str, int] = {}
    for name, size in sorted(sizes.items(), key=lambda item: item[1]):
        grain = granularity.get(name, 1)
        prime = _prime_below(size // grain, taken)
        taken.add(prime)
        found[name] = grain * prime
    return {name: found[name] for name in sizes}


class Names:
    """Expressions over dimensions for the numbers in code that was compiled for `sizes`."""

    def __init__(self, sizes: Mapping[str, int], granularity: Mapping[str, int]) -> None:
        self._grains = {name: granularity.get(name, 1) for name in sizes}
        self._primes = {name: size // self._grains[name] for name, size in sizes.items()}

    def expression(self, number: int) -> str | None:
        """The number as an expression over dimensions, or None."""
        offsets = ((0, ""), (-1, " - 1"), (1, " + 1")) if number > _SMALLEST_NEIGHBOUR else ((0, ""),)
        for offset, suffix in offsets:
            product = self._product(number - offset)
            if product is not None:
                return f"({product}{suffix})" if suffix else product
        return None

    def _product(self, number: int) -> str | None:
        rest, factors, divisor = number, [], 1
        for name, prime in self._primes.items():
            while rest and rest % prime == 0:
                rest //= prime
                factors.append(name)
                divisor *= self._grains[name]
        if not factors:
            return None
        common = math.gcd(rest, divisor)
        rest, divisor = rest // common, divisor // common
        product = " * ".join(factors if rest == 1 else [str(rest), *factors])
        if divisor != 1:
            return f"({product} // {divisor})"
        return product if len(factors) == 1 and rest == 1 else f"({product})"


def _prime_below(size: int, taken: Iterable[int]) -> int:
    start = max(size, SMALLEST)
    downwards = range(start, SMALLEST - 1, -1)
    upwards = range(start, 2 * start + 1000)
    free = (number for candidates in (downwards, upwards) for number in candidates if number not in taken)
    return next(each for each in free if all(each % divisor for divisor in range(2, math.isqrt(each) + 1)))
