"""Sizes, rates and durations as rounded text, for people who compare figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_RATES = ("B/s", "kB/s", "MB/s", "GB/s")


def approximate_size(size: float, form: str = ".1f") -> str:
    """``1.4 GiB``, in binary units, as the configuration writes sizes. `form`: of the number."""
    return _scaled(size, 1024, _SIZES, form)


def approximate_rate(rate: float) -> str:
    """``95 MB/s`` for bytes per second, in decimal units, as links are sold."""
    return _scaled(rate, 1000, _RATES, ".3g")


def approximate_duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``5.5 h``, ``3.2 d``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, name in ((86400, "d"), (3600, "h")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 60:.0f} min"


def _scaled(value: float, step: int, units: Sequence[str], form: str) -> str:
    place = 0
    while value >= step and place < len(units) - 1:
        value /= step
        place += 1
    # Whole bytes, and no exponent.
    is_whole = place == 0 or (form == ".3g" and value >= 1000)
    return f"{value:{'.0f' if is_whole else form}} {units[place]}"
