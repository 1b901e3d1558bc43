"""Parses and formats sizes, durations and rates.

    size      64MiB  500GiB  1GB  1.5 TB  4096        -> bytes, a whole number
    duration  30s  10m  1h  1.5d  250ms  30           -> seconds
    rate      600MB/s  1GiB/s  2000000                -> bytes per second

The `parse_*` functions take such a text or a plain number. Their ValueError names the text and the expected
form. Each `format_*` is the exact inverse of its `parse_*`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cachecd_client.quantities import approximate_duration as approximate_duration
from cachecd_client.quantities import approximate_rate
from cachecd_client.quantities import approximate_size as approximate_size

MAX_SIZE: Final = 2**63 - 1  # the largest file offset

SIZE_UNITS: Final[dict[str, int]] = {
    "B": 1,
    **{f"{prefix}B": 1000**n for n, prefix in enumerate("kMGTPE", 1)},
    **{f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGTPE", 1)},
}
DURATION_UNITS: Final[dict[str, Decimal]] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}

_SIZE_FACTORS = {**SIZE_UNITS, "": 1, "KB": 1000}
# Upper and lower case matter, because many people read Mb as megabits, which differs by a factor of 8.
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)(/s)?\s*")

_SIZE = "a size such as 64MiB, 1.5GB or a number of bytes"
_DURATION = "a duration such as 30s, 10m, 1.5h or a number of seconds"
_RATE = "a rate such as 600MB/s or a number of bytes per second"


@dataclass(frozen=True, slots=True)
class Percent:
    """A share of a size that is not known yet. `percent` is in (0, 100]."""

    percent: float

    def of(self, total: int) -> int:
        """Returns this share of `total` bytes, rounded down."""
        return int(Decimal(str(self.percent)) * total / 100)

    def __str__(self) -> str:
        return f"{_plain(Decimal(str(self.percent)))}%"


def parse_size(value: object) -> int:
    """Returns bytes, from 0 to MAX_SIZE, rounded down."""
    number, unit, per_second = _split(value, _SIZE)
    factor = _SIZE_FACTORS.get(unit)
    if factor is None or per_second:
        raise _unfit(value, _SIZE)
    size = int(number * factor)
    if size > MAX_SIZE:
        raise _unfit(value, f"a size of at most {format_size(MAX_SIZE)}")
    return size


def parse_duration(value: object) -> float:
    """Returns seconds, 0 or more."""
    number, unit, per_second = _split(value, _DURATION)
    factor = DURATION_UNITS.get(unit or "s")
    if factor is None or per_second:
        raise _unfit(value, _DURATION)
    return float(number * factor)


def parse_rate(value: object) -> float:
    """Returns bytes per second, 0 or more."""
    number, unit, per_second = _split(value, _RATE)
    factor = _SIZE_FACTORS.get(unit)
    if factor is None or bool(unit) != per_second:
        raise _unfit(value, _RATE)
    return float(number * factor)


def parse_size_or_percent(value: object) -> int | Percent:
    """Returns a size, or a Percent for a text such as ``80%``."""
    expected = f"{_SIZE}, or a share such as 80%"
    if isinstance(value, Percent):
        return value
    if isinstance(value, str) and value.rstrip().endswith("%"):
        number, unit, per_second = _split(value.rstrip()[:-1], expected)
        if unit or per_second or not 0 < number <= 100:
            raise _unfit(value, "a share of more than 0% and at most 100%")
        return Percent(float(number))
    try:
        return parse_size(value)
    except ValueError:
        raise _unfit(value, expected) from None


def format_size(size: int) -> str:
    """Returns the shortest text that parse_size turns into exactly `size`."""
    exact = [f"{size // factor}{unit}" for unit, factor in SIZE_UNITS.items() if not size % factor]
    return min(exact, key=len) if size else "0B"


def format_duration(seconds: float) -> str:
    """Returns a text for parse_duration, in the largest unit that gives a whole number."""
    if not seconds or not float(seconds).is_integer():
        return f"{_plain(Decimal(repr(seconds)))}s"
    whole = int(seconds)
    unit = next(u for u in ("d", "h", "m", "s") if not whole % int(DURATION_UNITS[u]))
    return f"{whole // int(DURATION_UNITS[unit])}{unit}"


def format_rate(rate: float) -> str:
    """Returns a text for parse_rate."""
    return f"{format_size(int(rate))}/s" if rate.is_integer() else _plain(Decimal(repr(rate)))


def progress_text(done: float, total: float, rate: float, unit: str = "bytes") -> str:
    """Returns progress in words, for example ``1.0 GiB of 4.0 GiB (25 %), 95 MB/s, about 32 s left``.

    `rate`: per second. `unit`: a plural, or "bytes". A `total` of 0 is unknown. "" if nothing is known.
    """
    is_size = unit == "bytes"
    parts = []
    if done or total:
        parts.append(approximate_size(done) if is_size else f"{done:,.0f}")
        if total:
            of = approximate_size(total) if is_size else f"{total:,.0f}"
            parts[0] += f" of {of} ({100 * min(done / total, 1):.0f} %)"
        parts[0] += "" if is_size else f" {unit}"
    if rate > 0:
        number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        parts.append(approximate_rate(rate) if is_size else f"{number} {unit}/s")
        if total > done:
            parts.append(f"about {approximate_duration((total - done) / rate)} left")
    return ", ".join(parts)


def shown(value: object) -> str:
    """Returns a value as short text for an error message, in the notation of YAML."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict() | list() | tuple() if not value:
            return "none"
        case dict():
            return "a mapping"
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _split(value: object, expected: str) -> tuple[Decimal, str, bool]:
    """Returns the number, the unit, and whether "/s" follows."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < 0 or not math.isfinite(value):
            raise _unfit(value, expected)
        return Decimal(repr(value)), "", False
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _unfit(value, expected)
    return Decimal(match[1]), match[2], match[3] is not None


def _plain(number: Decimal) -> str:
    """Formats without an exponent, because the parsers do not accept it, and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _unfit(value: object, expected: str) -> ValueError:
    return ValueError(f"found {shown(value)}, expected {expected}")


def printable(text: str) -> str:
    """Returns the text on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
