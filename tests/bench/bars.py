"""What the core must reach, as ratios within a run, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tests.bench.contenders import CONTENDERS
from tests.bench.contenders.contract import Contender

Measured = Mapping[str, Mapping[str, list[float]]]  # contender -> figure -> one value a repeat


@dataclass(frozen=True)
class Bar:
    """`ours` compared by `figure` to the best of those it is held `against`, or, without, by itself."""

    title: str
    case: str
    limit: float
    ours: str
    figure: str
    against: Callable[[Contender], bool] | None

    @property
    def required(self) -> str:
        return f"≥ {self.limit:g}x" if self.against else f"≤ {self.limit:g} ms/GB"


@dataclass(frozen=True)
class Row:
    """A bar and what was measured: the median of the repeats' values, their least and greatest.

    All None, and `met` too, if one side was not measured.
    """

    bar: str
    case: str
    required: str
    against: str | None
    measured: float | None
    low: float | None
    high: float | None
    met: bool | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _tf_data(contender: Contender) -> bool:
    return contender.family == "tf.data"


def _others(contender: Contender) -> bool:
    return contender.family in ("tf.data", "stock", "other")


def _named(name: str) -> Callable[[Contender], bool]:
    return lambda contender: contender.name == name


_EACH: tuple[tuple[str, str, str, Callable[[Contender], bool] | None, dict[str, float]], ...] = (
    (
        "torch(), alone, against the best tf.data setting",
        *("ours:torch", "mb_s", _tf_data, {"4kB": 6.0, "786kB": 5.0}),
    ),
    (
        "torch(), alone, against single-threaded memcpy",
        *("ours:torch", "mb_s", _named("memcpy"), {"4kB": 0.6, "786kB": 0.9}),
    ),
    (
        "torch(), while a Python thread computes, against the best of all others",
        *("ours:torch", "busy_mb_s", _others, {"4kB": 15.0, "786kB": 3.0}),
    ),
    (
        "torch(), time inside next() at a paced 600 MB/s",
        *("ours:torch", "next_ms_gb", None, {"4kB": 10.0, "786kB": 2.0}),
    ),
    (
        "tf(), alone, against tf_dataset()",
        *("ours:tf", "mb_s", _named("ours:tf_dataset"), {"4kB": 4.0, "786kB": 4.0}),
    ),
    (
        "tf_dataset(), alone, against the best tf.data setting",
        *("ours:tf_dataset", "mb_s", _tf_data, {"4kB": 1.0, "786kB": 1.0}),
    ),
)
BARS = tuple(
    Bar(title, case, limit, ours, figure, against)
    for title, ours, figure, against, limits in _EACH
    for case, limit in limits.items()
)


def judge(measured: Mapping[str, Measured]) -> list[Row]:
    return [_row(bar, measured.get(bar.case, {})) for bar in BARS]


def _row(bar: Bar, measured: Measured) -> Row:
    ours = measured.get(bar.ours, {}).get(bar.figure)
    rival = None if bar.against is None else _best(measured, bar.figure, bar.against)
    if not ours or (bar.against is not None and rival is None):
        return Row(bar.title, bar.case, bar.required, rival, None, None, None, None)
    if rival is None:
        values = ours
    else:
        theirs = measured[rival][bar.figure]
        values = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    middle = median(values)
    met = middle <= bar.limit if rival is None else middle >= bar.limit
    return Row(bar.title, bar.case, bar.required, rival, middle, min(values), max(values), met)


def _best(measured: Measured, figure: str, among: Callable[[Contender], bool]) -> str | None:
    figures = {
        name: median(values[figure])
        for name, values in measured.items()
        if figure in values and among(CONTENDERS[name])
    }
    return max(figures, key=lambda name: figures[name]) if figures else None
