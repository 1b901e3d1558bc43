"""The results as a picture: for every case what each reader reaches, alone and beside a thread."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from statistics import median

from tests.bench.contenders import CONTENDERS
from tests.bench.runs import Measurements, Results

_ALONE, _BUSY = "#4878a8", "#e49444"


def check(path: Path) -> None:
    """SystemExit if `draw` could not write this."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib")
    if path.suffix not in (".svg", ".png"):
        raise SystemExit(f"--plot {path}: expected a name that ends in .svg or .png")


def draw(results: Results, path: Path) -> None:
    """Writes the picture in the format that the name's ending says. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cachecd"  # the same figures give the same file
    from matplotlib import pyplot

    shown = {case: _best_of_each(measured) for case, measured in results.measured.items()}
    rows = sum(len(measured) for measured in shown.values())
    figure, axes = pyplot.subplots(
        len(shown),
        1,
        figsize=(9, 0.9 * len(shown) + 0.34 * rows),
        height_ratios=[len(measured) + 2 for measured in shown.values()],
        sharex=True,
        squeeze=False,
    )
    for axis, (case, measured) in zip(axes[:, 0], shown.items(), strict=True):
        names = list(measured)[::-1]
        for offset, figure_name, color, label in (
            (0.2, "mb_s", _ALONE, "alone"),
            (-0.2, "busy_mb_s", _BUSY, "while another Python thread computes"),
        ):
            known = [
                (i, measured[n][figure_name])
                for i, n in enumerate(names)
                if figure_name in measured[n]
            ]
            middles = [median(values) for _, values in known]
            errors = [
                [m - min(v) for m, (_, v) in zip(middles, known, strict=True)],
                [max(v) - m for m, (_, v) in zip(middles, known, strict=True)],
            ]
            axis.barh(
                [i + offset for i, _ in known],
                middles,
                0.38,
                color=color,
                label=label,
                xerr=errors,
                error_kw={"lw": 0.8, "ecolor": "#404040"},
            )
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xscale("log")
        axis.set_title(f"{case} records", loc="left", fontsize=10)
        axis.grid(axis="x", color="#d0d0d0", lw=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    axes[-1, 0].set_xlabel("MB/s, logarithmic; median and spread of the repeats")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _best_of_each(measured: dict[str, Measurements]) -> dict[str, Measurements]:
    """Of contenders that differ in a setting only, the one that is fastest alone; all of ours."""
    best: dict[str, str] = {}
    for name in CONTENDERS:
        if name not in measured:
            continue
        kind = name if name.startswith("ours:") else name.partition(":")[0]
        rival = best.get(kind)
        if rival is None or median(measured[name]["mb_s"]) > median(measured[rival]["mb_s"]):
            best[kind] = name
    return {name: measured[name] for name in best.values()}
