"""Accuracy over time as a picture: a panel for each size of the disk, a labelled line for each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Curve = Sequence[Sequence[float]]
GOAL = 88.0  # %, the accuracy with a line of its own
_LEAST, _MOST = 76.0, 91.0  # %, the axis
_BEGIN = 3.0  # seconds, the axis
_APART = 0.75  # % between two labels
_PANELS = {
    "Disk for all of the data": ("download all", "cachecd, room for all", "litData, room for all"),
    "Disk for a quarter of the data": (
        *("download a quarter", "cachecd, room for a quarter", "litData, room for a quarter"),
    ),
}
_EVERYWHERE = ("stream",)
# Colors that color-blind people can tell apart; a product has one color in both panels.
_STYLES = {
    "download": ("#555555", "--"),
    "cachecd": ("#0072b2", "-"),
    "litData": ("#d55e00", "-."),
    "stream": ("#009e73", ":"),
}


def draw(runs: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draws medians of the seeds, and a band from the least to the greatest. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cachecd"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(11, 4.4), sharey=True, squeeze=False)
    for axis, (title, names) in zip(axes[0], _PANELS.items(), strict=True):
        shown = {name: runs[name] for name in (*names, *_EVERYWHERE) if runs.get(name)}
        _panel(axis, title, shown)
    axes[0, 0].set_ylabel("correctly classified test pictures, %")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(axis: Any, title: str, shown: Mapping[str, Sequence[Curve]]) -> None:
    end = max(curve[-1][0] for curves in shown.values() for curve in curves)
    labels = []
    for name, curves in shown.items():
        color, style = _STYLES[name.split(" ")[0].rstrip(",")]
        first, last = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
        at = np.geomspace(max(first, _BEGIN), last, 300)
        lines = np.array([np.interp(at, *zip(*curve, strict=True)) for curve in curves])
        middle = np.median(lines, 0)
        axis.plot(at, middle, color=color, ls=style, lw=1.8)
        axis.fill_between(at, lines.min(0), lines.max(0), color=color, alpha=0.15, lw=0)
        labels.append((float(middle[-1]), float(last), name.partition(",")[0], color))
    below = _MOST
    for height, last, text, color in sorted(labels, reverse=True):
        below = min(height, below - _APART)
        axis.annotate(
            text, (last, height), (end * 1.06, below), color=color, va="center", fontsize=9,
            annotation_clip=False,
        )  # fmt: skip
    axis.axhline(GOAL, color="black", lw=0.8)
    axis.text(_BEGIN * 1.05, GOAL + 0.15, f"{GOAL:g} %", fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(_BEGIN, end * 1.03)
    axis.set_ylim(_LEAST, _MOST)
    ticks = [t for t in (3, 10, 30, 100, 300, 1000) if t <= end]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_xlabel("seconds since the start, downloads included (logarithmic)")
    axis.grid(color="#d8d8d8", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
