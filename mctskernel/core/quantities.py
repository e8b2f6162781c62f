"""Quantities as people read them: in sentences, tables and reports."""

from __future__ import annotations

from mctskernel.core.evaluation import Source


def count_text(value: float) -> str:
    """A count, three digits: `1.02 billion`."""
    for unit, size in (("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}"


def byte_text(value: float) -> str:
    """Bytes, three digits: `268 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} bytes"


def time_text(seconds: float, digits: int = 4) -> str:
    """Seconds in the largest unit that leaves at least one of them: `93.42 us`."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.{digits}g} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


def speedup_text(speedup: float, source: Source) -> str:
    """A speed-up: `2.47x`; a modelled one has two digits, as its uncertainty is about 12 %."""
    if source is not Source.MODELLED:
        return f"{speedup:.2f}x"
    return f"{speedup:.1f}x" if 0.95 <= speedup < 9.95 else f"{float(f'{speedup:.2g}'):g}x"


def ratio_text(ratio: float) -> str:
    """How many times, up or down: `0.25` and `4.0` are `4.0x`, what hardly moves is a percentage: `3.1%`."""
    factor = max(ratio, 1.0 / ratio)
    if factor < 1.1:
        return f"{factor - 1.0:.1%}"
    return f"{factor:.2f}x" if factor < 3 else f"{factor:.1f}x" if factor < 100 else f"{factor:,.0f}x"
