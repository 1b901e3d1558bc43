"""Accuracy over time behind a slow link, for several ways to get the training data.

    python -m tests.bench.growth

The time is simulated: a link brings so many pictures a second, and a trainer trains so many. cachecd's
policy and litData decide for real what is fetched, kept and trained. A perceptron then learns from the
recorded batches of Fashion-MNIST. So neither the speed nor the load of the machine changes a result.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from tests.bench import report
from tests.bench.growth import curves
from tests.bench.growth.fashion import TRAIN, Pictures, fashion_mnist, located
from tests.bench.growth.learner import RATE, Learner, curve_of, final, reached, rise
from tests.bench.growth.pace import BATCH, Setting, Trainer, batches
from tests.bench.growth.ways import Cached, Download, LitData, Way, stream

MARK = "growth"
_ACCURACIES = (80, 84, 86, 88)  # %
_RATES = (0.01, 0.03, 0.1, 0.3)
_RATE_PASSES, _HELD_OUT = 10, 5_000

Run = dict[str, Any]
Runs = dict[str, list[Run]]  # way -> a run for each seed

WAYS: dict[str, Way] = {
    "download all": Download(1.0),
    "cachecd, room for all": Cached(1.0),
    "litData, room for all": LitData(None),
    "stream": stream,
    "download a quarter": Download(0.25),
    "cachecd, room for a quarter": Cached(0.25),
    "litData, room for a quarter": LitData(0.25),
    "cachecd, room for a half": Cached(0.5),
}


def measure(options: argparse.Namespace) -> Runs:
    """Each way once for each seed. A run that is in `options.runs` is not repeated."""
    ways = [way for way in WAYS if _is_wanted(way, options.only)]
    runs: Runs = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        pictures = fashion_mnist(located(options.fashion_mnist, Path(folder)))
    for seed in options.seeds:
        for way in ways:
            file = options.runs / f"{seed} {way}.json"
            if not file.exists():
                _write(file, _run(way, seed, pictures))
            run = cast("Run", json.loads(file.read_text()))
            runs[way].append(run)
            _report(f"seed {seed}, {way}: {run['final']:.1f} %, {run['trained']:,} samples")
    return runs


def _run(way: str, seed: int, pictures: Pictures) -> Run:
    trainer = Trainer(Setting())
    with tempfile.TemporaryDirectory(prefix="cachecd-g-", ignore_cleanup_errors=True) as folder:
        more = WAYS[way](trainer, seed, Path(folder))
    curve = curve_of(pictures, trainer.steps, seed)
    trained = {"trained": trainer.samples, "first_s": trainer.steps[0][0]}
    return {**more, **trained, "final": final(curve), "rise": rise(curve), "curve": curve}


def _write(file: Path, run: Run) -> None:
    """Writes the file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".part")
    draft.write_text(json.dumps(run))
    draft.replace(file)


def _is_wanted(way: str, only: Sequence[str]) -> bool:
    return not only or any(part in way for part in only)


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def choose_rate(options: argparse.Namespace) -> str:
    """The table by which the learning rate was chosen: accuracy on held-out training pictures."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = fashion_mnist(located(options.fashion_mnist, Path(folder)))
    order = np.random.default_rng(0).permutation(TRAIN).astype(np.int32)
    held_out, used = order[:_HELD_OUT], order[_HELD_OUT:]
    heldout = Pictures(
        pictures.pixels, pictures.labels, pictures.pixels[held_out], pictures.labels[held_out]
    )
    lines = ["| learning rate | accuracy on the held-out pictures, % |", "|--:|--:|"]
    for rate in _RATES:
        learner, chance = Learner(heldout, 0, rate), np.random.default_rng(1)
        for _ in range(_RATE_PASSES):
            for batch in batches(used, chance):
                learner.step(batch)
        lines.append(f"| {rate:g} | {learner.accuracy():.2f} |")
        _report(lines[-1])
    return "\n".join(lines) + "\n"


def page(runs: Runs) -> str:
    setting = Setting()
    seeds = max(map(len, runs.values()))
    text = (
        f"{setting.link:,.0f} pictures a second over the link, {setting.compute:,.0f} trained a second for "
        f"{setting.horizon:,.0f} s, {BATCH} a batch, learning rate {RATE:g}; {seeds} seeds: medians, with "
        "the least and the greatest."
    )
    heads = [*(f"s to {a} %" for a in _ACCURACIES), "in the end, %", "rise in the last tenth"]
    heads += ["largest set", "pictures fetched"]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for way, some in runs.items():
        cells = [
            *(_spread([reached(run["curve"], a) for run in some], 0) for a in _ACCURACIES),
            *(_spread([run[key] for run in some], 2) for key in ("final", "rise")),
            *(f"{statistics.median(r[key] for r in some):,.0f}" for key in ("set", "fetched")),
        ]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return text + "\n\n" + "\n".join(lines) + "\n"


def _spread(values: Sequence[float], digits: int) -> str:
    """The median, and the least and the greatest in brackets; an infinite time is "not reached"."""
    shown = [
        "not reached" if math.isinf(value) else f"{value:,.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    ]
    is_single = len(values) == 1 or shown[1] == shown[2]
    return shown[0] if is_single else f"{shown[0]} ({shown[1]}-{shown[2]})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of each way (0 1 2)")
    add("--only", nargs="+", default=[], metavar="TEXT", help="ways whose names contain a text")
    add("--fashion-mnist", type=Path, metavar="DIR", help="with its four files; else it is fetched")
    add("--runs", type=Path, metavar="DIR", help="keeps each run there and repeats none",
        default=Path("build/bench/growth"))  # fmt: skip
    add("--rates", action="store_true", help="compares learning rates, and measures nothing else")
    add("--plot", type=Path, metavar="FILE", help="a picture, .svg or .png; needs matplotlib")
    add(
        "--page", type=Path, metavar="FILE", help="puts the table into this page, between its marks"
    )
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    if options.rates:
        sys.stdout.write(choose_rate(options))
        return 0
    if options.page:
        report.put_into(options.page, None, MARK)  # what would fail at the end fails now
    runs = measure(options)
    if options.plot:
        curves.draw(
            {way: [run["curve"] for run in some] for way, some in runs.items()}, options.plot
        )
    table = page(runs)
    sys.stdout.write(table)
    if options.page:
        report.put_into(options.page, table, MARK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
