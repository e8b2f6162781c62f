"""The numerical contract of a task: what a kernel must do with values that drawn inputs don't hold.

    [numerics]
    nan = "propagate"            # or "local", "unspecified"
    infinity = "propagate"       # or "local", "unspecified"
    denormals = "preserve"       # or "flush", "unspecified"
    signed_zero = "preserve"     # or "unspecified"
    scales = [1e-30, 1e30]       # drawn inputs times these, and everything between, must work

What is left out is as `Numerics` has it, which honest kernels meet without thinking of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=enum.StrEnum)

SCALES = (2.0**-10, 64.0)
"""What drawn inputs are multiplied by where a task says nothing."""


class NumericsError(ValueError):
    """A [numerics] table that can't be used; the message says what is wrong, without naming the file."""


class Propagation(enum.StrEnum):
    """What becomes of a NaN, or an infinity, among the inputs. Elements that don't depend on it are right either way.

    `PROPAGATE`: outputs hold what the reference, in float64, makes of it.

    `LOCAL`: so they do, but what IEEE 754 or CUDA leave to the algorithm is left to it. A NaN may win or lose in a
    maximum, a minimum, a comparison or a sort, as `fmaxf` and `numpy.maximum` differ; an infinity may become a NaN
    (`inf - inf` in an online softmax), and where the reference has a NaN for it anything will do.

    `UNSPECIFIED`: no input holds one.
    """

    PROPAGATE = "propagate"
    LOCAL = "local"
    UNSPECIFIED = "unspecified"


class Denormals(enum.StrEnum):
    """Whether numbers below the smallest normal one keep their digits, may be flushed to zero, or don't occur."""

    PRESERVE = "preserve"
    FLUSH = "flush"
    UNSPECIFIED = "unspecified"


class SignedZero(enum.StrEnum):
    """Whether an output's zero has the sign of the reference's."""

    PRESERVE = "preserve"
    UNSPECIFIED = "unspecified"


@dataclass(frozen=True)
class Numerics:
    """A task's numerical contract.

    What is `stated` in `task.toml` is checked in every floating-point input; the rest only in those that are drawn
    from a normal distribution, since others, as probabilities, may have no use for such values.
    """

    nan: Propagation = Propagation.LOCAL
    infinity: Propagation = Propagation.LOCAL
    denormals: Denormals = Denormals.UNSPECIFIED
    signed_zero: SignedZero = SignedZero.UNSPECIFIED
    scales: tuple[float, float] = SCALES
    stated: frozenset[str] = frozenset()


def read_numerics(table: object, *, exact: bool) -> Numerics:
    """The contract in a [numerics] table; None where a task has none. Raises NumericsError.

    Where outputs are `exact`, with a tolerance of zero, denormals are preserved unless the table says otherwise.
    """
    if table is None:
        table = {}
    known = ("nan", "infinity", "denormals", "signed_zero", "scales")
    if not isinstance(table, Mapping) or not set(table) <= set(known):
        raise NumericsError(f"[numerics] may hold {', '.join(known)}.")
    return Numerics(
        nan=_choice(table, "nan", Propagation.LOCAL),
        infinity=_choice(table, "infinity", Propagation.LOCAL),
        denormals=_choice(table, "denormals", Denormals.PRESERVE if exact else Denormals.UNSPECIFIED),
        signed_zero=_choice(table, "signed_zero", SignedZero.UNSPECIFIED),
        scales=read_scales(table["scales"], "[numerics]") if "scales" in table else SCALES,
        stated=frozenset(table),
    )


def read_scales(value: object, where: str) -> tuple[float, float]:
    """The smallest and the largest factor of drawn inputs. Raises NumericsError."""
    match value:
        case [int() | float() as low, int() | float() as high] if 0 < low <= 1 <= high < math.inf:
            return float(low), float(high)
    raise NumericsError(
        f"{where}: 'scales' must be two factors, one of at most 1 and above 0, one of at least 1: "
        f"[1e-3, 1e3], not {value!r}."
    )


def _choice(table: Mapping[str, Any], key: str, default: Choice) -> Choice:
    kind = type(default)
    value = table.get(key, default.value)
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(f'"{word}"' for word in kind)
        raise NumericsError(f"[numerics]: '{key}' must be one of {words}, not {value!r}.") from None
