"""Accuracy over time as a picture: a panel for each schedule, a line for each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Curve = Sequence[tuple[float, float]]
_COLORS = ("#707070", "#d65f5f", "#1f4e79", "#4878a8", "#8cb8dc")


def draw(found: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path) -> None:
    """Medians of the seeds, and what lies between the least and the greatest. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cachecd"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(found), figsize=(5.5 * len(found), 4), sharey=True, squeeze=False
    )
    for axis, (schedule, ways) in zip(axes[0], found.items(), strict=True):
        for color, (way, curves) in zip(_COLORS, ways.items(), strict=True):
            end = max(curve[-1][0] for curve in curves)
            at = np.linspace(min(curve[0][0] for curve in curves), end, 300)
            lines = np.array([_interpolated(curve, at) for curve in curves])
            axis.plot(at, np.median(lines, 0), color=color, lw=1.4, label=way)
            axis.fill_between(at, lines.min(0), lines.max(0), color=color, alpha=0.15, lw=0)
        axis.set_title(f"{schedule} learning rate", loc="left", fontsize=10)
        axis.set_xlabel("seconds since the way began")
        axis.grid(color="#d0d0d0", lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    best = max(
        value for ways in found.values() for cs in ways.values() for c in cs for _, value in c
    )
    axes[0, 0].set_ylim(best - 15, best + 1)
    axes[0, 0].set_ylabel("accuracy on the test pictures, %")
    axes[0, -1].legend(fontsize=8, loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _interpolated(curve: Curve, at: np.ndarray) -> np.ndarray:
    seconds, accuracy = zip(*curve, strict=True)
    return np.interp(at, seconds, accuracy, left=np.nan)
