"""What a situation reports: tables of medians with their spread, and bars that are judged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Sequence[str | Sequence[float]]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the least and the greatest in brackets; what never came to be is infinite."""
    middle, least, most = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return _number(middle, digits)
    return f"{_number(middle, digits)} ({_number(least, digits)}-{_number(most, digits)})"


def _number(value: float, digits: int) -> str:
    return "never" if math.isinf(value) else f"{value:,.{digits}f}"


def table(heads: Sequence[str], rows: Sequence[Row], digits: int = 2) -> str:
    """Markdown; a cell is text or the values that it is the median of."""
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for row in rows:
        cells = [cell if isinstance(cell, str) else spread(cell, digits) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Bar:
    """What the median of `values` is held to: at most `bound`, or at least."""

    name: str
    bound: float
    values: Sequence[float]
    at_least: bool = False
    digits: int = 2

    @property
    def met(self) -> bool:
        middle = statistics.median(self.values)
        return middle >= self.bound if self.at_least else middle <= self.bound

    def row(self) -> Row:
        required = f"{'≥' if self.at_least else '≤'} {self.bound:g}"
        judged = "met" if self.met else "**missed**"
        return self.name, required, spread(self.values, self.digits), judged


@dataclass
class Report:
    """One situation's outcome. `figures`: every value measured, for --json."""

    title: str
    setting: str
    tables: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> Iterator[str]:
        yield f"## {self.title}\n"
        yield f"{self.setting}\n"
        yield from self.tables
        if self.bars:
            rows = [bar.row() for bar in self.bars]
            yield table(["bar", "required", "measured", ""], rows)

    def document(self) -> dict[str, Any]:
        bars = {
            bar.name: {
                "values": [None if math.isinf(value) else value for value in bar.values],
                "met": bar.met,
            }
            for bar in self.bars
        }
        return {"title": self.title, "bars": bars, "figures": self.figures}
