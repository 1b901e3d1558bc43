"""Why growing is right: accuracy over time, of a network whose data comes over a slow link.

    python -m tests.bench.growth

Fashion-MNIST's 60,000 pictures lie in a real S3 server, an object each, behind a link of so many a
second. Three ways to train from it, by turns: download everything (into memory), then train; train from
a stream, without a cache; train through the daemon, whose cache has room for all, a half or a quarter
of the data. The same network, pace of computing, seeds and link for all. The clock begins before the
listing or the daemon's start; accuracy is that of snapshots, evaluated afterwards. The store stands for
another machine, so its server gives way to the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import obstore
from obstore.store import S3Store

from tests.bench.growth import curves
from tests.bench.growth.fashion import Pictures, fashion_mnist, located
from tests.bench.growth.learner import Learner, Pace, Schedule, final, reached
from tests.bench.growth.ways import BUCKET, Cached, Link, download_first, stream
from tests.bench.measuring import turns
from tests.stores import S3Server, s3_server

_DOWNLOAD = "download first"
_FIRST = 500  # records before training begins
_ACCURACIES = (80, 84, 86, 88)  # in %, those the time to which is measured

Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]  # schedule -> way -> a run a seed


def measure(options: argparse.Namespace) -> str:
    """Every way once a seed, each seed in another order. Returns the tables."""
    pace, objects = Pace(samples=10_000, horizon=240.0), 500
    with _place(options) as folder:
        pictures = fashion_mnist(located(options.fashion_mnist, Path(folder)))
    ways = _ways(pictures)
    runs: Runs = {schedule: {way: [] for way in ways} for schedule in get_args(Schedule)}
    with s3_server(nice=True) as server:
        _say(f"filling the store with {len(pictures.train):,} objects")
        fill(server, pictures.train)
        link = Link(server, objects * pictures.object_bytes)

        def run(seed: int, schedule: Schedule, way: str) -> Run:
            with _place(options) as folder:
                learner = Learner(seed, schedule, pace)  # the clock begins here
                found: Run = {**ways[way](learner, link, Path(folder))}
            curve = learner.curve(pictures.test_pixels, pictures.test_labels)
            return found | {"trained": learner.trained, "final": final(curve), "curve": curve}

        for seed in range(options.repeats):
            for schedule, way in turns(itertools.product(get_args(Schedule), ways), seed):
                name = f"{pace.samples:g} {seed} {schedule} {way}"
                found = _once(options.runs, name, partial(run, seed, schedule, way))
                runs[schedule][way].append(found)
                _say(f"{name}: {found['final']:.1f} %, {found['trained']:,} samples")
    if options.plot:
        curves.draw(
            {s: {way: [run["curve"] for run in of[way]] for way in of} for s, of in runs.items()},
            options.plot,
        )
    return _page(runs, objects, pace, pictures)


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _place(options: argparse.Namespace) -> tempfile.TemporaryDirectory[str]:
    """A directory for one daemon's files, of a path short enough for a socket."""
    return tempfile.TemporaryDirectory(prefix="cachecd-g-", dir=options.folder)


def _once(kept: Path | None, name: str, run: Callable[[], Run]) -> Run:
    """The run that is kept under this name, or now done and kept: fifty take hours."""
    file = kept and kept / f"{name}.json"
    if file and file.exists():
        return cast("Run", json.loads(file.read_text()))
    found = run()
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # never half of one, should this be killed
        part.write_text(json.dumps(found))
        part.replace(file)
    return found


Way = Callable[[Learner, Link, Path], dict[str, float]]


def _ways(pictures: Pictures) -> dict[str, Way]:
    found: dict[str, Way] = {
        _DOWNLOAD: lambda learner, link, _: download_first(learner, link),
        "stream": lambda learner, link, _: stream(learner, link),
    }
    for share in (1.0, 0.5, 0.25):
        found[f"cachecd, {100 * share:.0f} %"] = Cached(share, len(pictures.train), _FIRST)
    return found


def fill(server: S3Server, objects: dict[str, bytes]) -> None:
    """By obstore: boto3 would take minutes for as many."""
    server.bucket(BUCKET)
    variables = server.environ
    store = S3Store(
        BUCKET,
        endpoint=server.endpoint,
        region=variables["AWS_DEFAULT_REGION"],
        access_key_id=variables["AWS_ACCESS_KEY_ID"],
        secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )

    async def put_all() -> None:
        todo = iter(objects.items())

        async def lane() -> None:
            for key, body in todo:
                await obstore.put_async(store, key, body)

        await asyncio.gather(*(lane() for _ in range(32)))

    asyncio.run(put_all())


def _page(runs: Runs, objects: float, pace: Pace, pictures: Pictures) -> str:
    downloads = [run["downloaded_s"] for of in runs.values() for run in of[_DOWNLOAD]]
    setting = (
        f"{pictures.name}: {len(pictures.train):,} objects of {pictures.object_bytes:.0f} bytes on "
        f"average, a link of {objects:g} of them a second, {pace.samples:g} samples a second computed "
        f"(sleep stands for what is left of a GPU's time), {pace.horizon:g} s. Seconds to an accuracy; "
        "the largest set of an epoch; samples trained on. To download everything took "
        f"{_spread(downloads)} s, and the link would have taken {len(pictures.train) / objects:.1f}."
    )
    parts = [setting]
    for schedule, of in runs.items():
        times = [f"s to {accuracy} %" for accuracy in _ACCURACIES]
        heads = [f"{schedule} learning rate", *times, "in the end, %", "set", "samples"]
        lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
        for way, some in of.items():
            cells = [
                *(_spread([reached(run["curve"], a) for run in some]) for a in _ACCURACIES),
                _spread([run["final"] for run in some]),
                *(f"{statistics.median(r[key] for r in some):,.0f}" for key in ("set", "trained")),
            ]
            lines.append(f"| {way} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _spread(values: Sequence[float]) -> str:
    """The median, and the least and the greatest in brackets; an infinite time is "never"."""
    shown = [
        "never" if math.isinf(value) else f"{value:,.1f}"
        for value in (statistics.median(values), min(values), max(values))
    ]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]}-{shown[2]})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--repeats", type=int, default=5, help="seeds of each way (5)")
    add("--folder", type=Path, help="where caches and stores go (the temporary directory)")
    add("--fashion-mnist", type=Path, metavar="DIR", help="with its four files; else it is fetched")
    add("--runs", type=Path, metavar="DIR", help="keeps each run there, does none twice")
    add("--plot", type=Path, metavar="FILE", help="a picture, .svg or .png; needs matplotlib")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    sys.stdout.write(measure(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
