"""6. Why growing is right: accuracy over time, of a network whose data comes over a slow link.

Fashion-MNIST's 60,000 pictures lie in a real S3 server, an object each, behind a link of so many a
second. Three ways to train from it, by turns: download everything (into memory), then train; train from
a stream, without a cache; train through the daemon, whose cache has room for all, a half or a quarter
of the data. The same network, pace of computing, seeds and link for all. The clock begins before the
listing or the daemon's start; accuracy is that of snapshots, evaluated afterwards. The store stands for
another machine, so its server gives way to the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import obstore
from obstore.store import S3Store

from tests.bench.situations import curves
from tests.bench.situations.fashion import Pictures, digits, fashion_mnist, located
from tests.bench.situations.learner import Learner, Pace, Schedule, final, reached
from tests.bench.situations.places import Options, by_turns, place, say
from tests.bench.situations.report import Bar, Report, spread, table
from tests.bench.situations.ways import BUCKET, Cached, Link, download_first, stream
from tests.stores import S3Server, s3_server

_DOWNLOAD, _STREAM, _QUARTER = "download first", "stream", "cachecd, 25 %"
_SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True)
class Scale:
    """`link`: objects a second. `accuracies`, in %: those the time to which is told, the last two of
    them to be held to a bar."""

    link: float
    pace: Pace
    first: int  # records before training begins
    accuracies: tuple[float, ...]
    schedules: tuple[Schedule, ...]


SHORT = Scale(700, Pace(14_000, 6.0), 150, (60, 70, 80, 85), _SCHEDULES[:1])


def full(speed: float) -> Scale:
    """500 objects and 10,000 samples a second for four minutes, or as much in a shorter time."""
    pace = Pace(10_000 * speed, 240.0 / speed)
    return Scale(500 * speed, pace, 500, (80, 84, 86, 88), _SCHEDULES)


Run = dict[str, Any]


def measure(options: Options) -> Report:
    scale = SHORT if options.short else full(options.speed)
    with place(options) as folder:
        fashion = None if options.short else located(options.fashion, folder)
        pictures = digits() if fashion is None else fashion_mnist(fashion)
    ways = _ways(pictures, scale)
    runs: dict[str, dict[str, list[Run]]] = {s: {way: [] for way in ways} for s in scale.schedules}
    with s3_server(nice=True) as server:
        say(f"filling the store with {len(pictures.train):,} objects")
        fill(server, pictures.train)
        link = Link(server, scale.link * pictures.object_bytes)
        each = list(itertools.product(scale.schedules, ways))

        def run(seed: int, schedule: Schedule, way: str) -> Run:
            with place(options) as folder:
                learner = Learner(seed, schedule, scale.pace)  # the clock begins here
                found: Run = {**ways[way](learner, link, folder)}
            curve = learner.curve(pictures.test_pixels, pictures.test_labels)
            return found | {"trained": learner.trained, "final": final(curve), "curve": curve}

        for seed, (schedule, way) in by_turns(each, options.repeats):
            found = _once(
                options.runs,
                f"{scale.pace.samples:g} {seed} {schedule} {way}",
                partial(run, seed, schedule, way),
            )
            runs[schedule][way].append(found)
            best = f"{found['final']:.1f} % in the end, {found['trained']:,} samples"
            say(f"seed {seed}, {schedule} learning rate, {way}: {best}")
    if options.plot:
        curves.draw(
            {s: {way: [run["curve"] for run in of[way]] for way in of} for s, of in runs.items()},
            options.plot,
        )
    return _report(runs, scale, pictures)


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


def _ways(pictures: Pictures, scale: Scale) -> dict[str, Way]:
    found: dict[str, Way] = {
        _DOWNLOAD: lambda learner, link, _: download_first(learner, link),
        _STREAM: lambda learner, link, _: stream(learner, link),
    }
    for share in (1.0, 0.5, 0.25):
        found[f"cachecd, {share:.0%}".replace("%", " %")] = Cached(
            share, len(pictures.train), scale.first
        )
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


def _times(runs: Sequence[Run], accuracy: float, never: float | None = None) -> list[float]:
    """Seconds to the accuracy, run by run; `never`: what stands for infinity."""
    times = [reached(run["curve"], accuracy) for run in runs]
    return times if never is None else [min(one, never) for one in times]


def _report(runs: dict[str, dict[str, list[Run]]], scale: Scale, pictures: Pictures) -> Report:
    every = [run["downloaded_s"] for of in runs.values() for run in of[_DOWNLOAD]]
    report = Report(
        "6. Why growing is right",
        f"{pictures.name}: {len(pictures.train):,} objects of {pictures.object_bytes:.0f} bytes on "
        f"average, a link of {scale.link:g} of them a second, {scale.pace.samples:g} samples a second "
        f"computed (sleep stands for what is left of a GPU's time), {scale.pace.horizon:g} s. Seconds to "
        "an accuracy, in %; the largest set of an epoch; samples trained on, of "
        f"{scale.pace.samples * scale.pace.horizon:,.0f}. To download everything took "
        f"{spread(every, 1)} s, and the link would have taken {len(pictures.train) / scale.link:.1f}.",
        figures=runs,
    )
    for schedule, of in runs.items():
        heads = [f"{schedule} learning rate", *(f"s to {a:g} %" for a in scale.accuracies)]
        rows = [
            [
                way,
                *(_times(some, accuracy) for accuracy in scale.accuracies),
                [run["final"] for run in some],
                f"{statistics.median(run['set'] for run in some):,.0f}",
                f"{statistics.median(run['trained'] for run in some):,.0f}",
            ]
            for way, some in of.items()
        ]
        report.tables.append(table([*heads, "in the end, %", "set", "samples"], rows, 1))
    report.bars += _bars(runs, scale)
    return report


def _bars(runs: dict[str, dict[str, list[Run]]], scale: Scale) -> list[Bar]:
    """Of the smallest cache; times where the learning rate does not itself decide when it is good."""
    constant = runs["constant"]
    quarter = partial(_times, constant[_QUARTER])
    well, best = scale.accuracies[-2:]
    # Who never got there had not by the end: it took at least as long.
    horizon = scale.pace.horizon
    against_download = _times(constant[_DOWNLOAD], best, horizon)
    against_stream = _times(constant[_STREAM], well, horizon)
    bars = [
        Bar(
            f"s to {best:g} %, times download first",
            0.6,
            [a / b for a, b in zip(quarter(best), against_download, strict=True)],
        ),
        Bar(
            f"s to {well:g} %, times stream",
            0.3,
            [a / b for a, b in zip(quarter(well), against_stream, strict=True)],
        ),
    ]
    for schedule, of in runs.items():
        lost = [
            whole["final"] - some["final"]
            for whole, some in zip(of[_DOWNLOAD], of[_QUARTER], strict=True)
        ]
        bars.append(Bar(f"points lost in the end, {schedule} learning rate", 0.5, lost))
    return bars
