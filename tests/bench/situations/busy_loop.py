"""2. A training loop whose Python must not be held up: 600 MB/s of raw data while the daemon ingests.

The loop takes a batch of 25 MB every 42 ms, computes in pure Python for two fifths of that time, and
sleeps for what is left, as one that waits for a GPU does. What is measured is how long that Python
takes: alone, with batches of nothing, and beside each reader, which takes its batches from a cache that
the daemon is filling and rotating meanwhile. Both by turns of two seconds, in which daemon and store stand
still or run, as the speed of a shared machine changes from one half minute to the next. The store stands
for another machine, so its server takes what time nobody else wants.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client import Epoch
from cachecd_client._core import encode_example
from cachecd_client.session.cache import Cache
from tests.bench.measuring import PACE, descendants
from tests.bench.situations.places import EXAMPLES, Options, by_turns, place, say
from tests.bench.situations.report import Bar, Report, table
from tests.core.shards import frames
from tests.e2e.daemons import ExecutedDaemon
from tests.stores import S3Server, s3_server

SIDE = 512
PIXELS = SIDE * SIDE * 3
BATCH = 32
INTERVAL = BATCH * PIXELS / PACE  # seconds
BUCKET = "raw"
_WORK = 0.4  # of the interval
_SHARD = 64 << 20  # the default
_HEADER = struct.Struct("<QI")  # of a TFRecord frame


@dataclass(frozen=True)
class Scale:
    """Objects of 64 MB in the store; the link, bytes a second; bytes on disk; records in the first set;
    turns of so many seconds alone, and as many beside the reader."""

    objects: int
    link: float
    limit: int
    first: int
    turns: int
    seconds: float


# Sets of 1 to 2 GB: passes of two to three seconds.
FULL = Scale(32, 100e6, 2 << 30, 1280, 5, 2.0)
SHORT = Scale(6, 100e6, 256 << 20, 128, 1, 0.5)
Batches = Callable[[Cache], Iterator[Any]]


def _each_epoch(loader: Callable[[Epoch], Iterable[Any]]) -> Batches:
    def batches(cache: Cache) -> Iterator[Any]:
        for epoch in cache.epochs("train", 1_000_000):
            yield from loader(epoch)

    return batches


def _by_dataloader(epoch: Epoch) -> Iterable[Any]:
    """What Python makes of TFRecord files in torch's DataLoader with two workers."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    files = epoch.files

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            assert info is not None
            rows: list[Any] = []
            for path in files[info.id :: info.num_workers]:
                for data in _records(path):
                    rows.append(np.frombuffer(data, np.uint8, PIXELS, len(data) - PIXELS))
                    if len(rows) == BATCH:
                        yield {"image": torch.from_numpy(np.stack(rows))}
                        rows = []

    return DataLoader(Batches(), batch_size=None, num_workers=2)


def _records(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while header := file.read(_HEADER.size):
            yield file.read(_HEADER.unpack(header)[0])
            file.seek(4, os.SEEK_CUR)


READERS: dict[str, Batches] = {
    "PyTorch: epoch.torch()": _each_epoch(lambda epoch: epoch.torch(BATCH, features=["image"])),
    "TensorFlow: epoch.tf()": _each_epoch(lambda epoch: epoch.tf(BATCH, features=["image"])),
    "TensorFlow: cache.tf_dataset()": lambda cache: iter(
        cache.tf_dataset("train", BATCH, features=["image"])
    ),
    "PyTorch: DataLoader, 2 workers in Python": _each_epoch(_by_dataloader),
}
_HELD = list(READERS)[:2]
# What the machine itself takes: two processors of a virtual machine are often one core of the real one.
_COMPUTING = "nothing, but another process computes all the time"


def measure(options: Options) -> Report:
    scale = SHORT if options.short else FULL
    readers = _HELD if options.short else list(READERS)
    for name in readers:  # frameworks are imported before anything is timed
        __import__("torch" if name.startswith("PyTorch") else "tensorflow")
    rounds = _rounds_for(_WORK * INTERVAL)
    figures = ("kept", "work_s", "waited_share", "mb_s", "ingested_mb_s")
    found: dict[str, dict[str, list[float]]] = {
        name: {figure: [] for figure in figures} for name in [*readers, _COMPUTING]
    }
    with s3_server(nice=True) as server:
        _fill(server, scale)
        for repeat, name in by_turns([*readers, _COMPUTING], options.repeats):
            with place(options) as folder:
                if name == _COMPUTING:
                    measured = _beside_computing(rounds, scale)
                else:
                    measured = _beside(READERS[name], rounds, scale, server, folder)
            for figure, value in measured.items():
                found[name][figure].append(value)
            kept = measured["kept"]
            say(f"{repeat + 1} of {options.repeats}, {name}: {kept:.3f} of its speed alone")
    return _report(found, scale)


def _work(rounds: int) -> int:
    value = 1
    for _ in range(rounds):
        value = (value * 31 + 7) % 1000003
    return value


def _rounds_for(seconds: float) -> int:
    best = min(_timed(_work, 100_000) for _ in range(20))
    return max(1, int(100_000 * seconds / best))


def _timed(call: Callable[[int], object], argument: int) -> float:
    began = time.perf_counter()
    call(argument)
    return time.perf_counter() - began


@dataclass
class Loop:
    """Steps on schedule; one that was kept waiting catches up, as far as its work and sleep allow."""

    rounds: int
    steps: int = 0
    working: float = 0.0
    waiting: float = 0.0
    elapsed: float = 0.0

    def run(self, batches: Iterator[Any], seconds: float) -> None:
        held = next(batches)
        began = due = time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.working += _timed(_work, self.rounds)
            due += INTERVAL
            time.sleep(max(0.0, due - time.perf_counter()))
            asked = time.perf_counter()
            held = next(batches)
            self.waiting += time.perf_counter() - asked
            self.steps += 1
        self.elapsed += time.perf_counter() - began
        del held


def _beside_computing(rounds: int, scale: Scale) -> dict[str, float]:
    """The loop with batches of nothing, beside a process that takes the other core and no data."""
    nothing = itertools.repeat(None)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as computing:
        try:
            alone, beside = Loop(rounds), Loop(rounds)
            for _ in range(scale.turns):
                with _stopped(computing.pid):
                    alone.run(nothing, scale.seconds)
                beside.run(nothing, scale.seconds)
        finally:
            computing.kill()
    return _figures(alone, beside, 0.0)


def _beside(
    reader: Batches, rounds: int, scale: Scale, server: S3Server, folder: Path
) -> dict[str, float]:
    """The loop over epoch after epoch, from a daemon with an empty cache; and alone."""
    train = {
        "source": {"url": f"s3://{BUCKET}/", "format": "tfrecord"},
        "transform": "situation_2_busy_loop:pixels",
        "grow": {"first": scale.first * PIXELS},
    }
    with ExitStack() as owned:
        daemon = owned.enter_context(
            ExecutedDaemon(
                folder,
                {"train": train},
                server.environ,
                limit=scale.limit,
                shard_size=_SHARD,
                sampler={"workers": 2, "bandwidth": scale.link, "path": [str(EXAMPLES)]},
            )
        )
        cache = owned.enter_context(daemon.start().connect(60.0))

        source = reader(cache)
        # The first pass of a framework is not what is measured.
        for _ in range(3):
            next(source)
        alone, beside, ingested = Loop(rounds), Loop(rounds), 0.0
        for _ in range(scale.turns):
            with _stopped(daemon.pid):
                alone.run(itertools.repeat(None), scale.seconds)
            Loop(rounds).run(source, scale.seconds / 5)  # what was read ahead meanwhile
            before = _ingested(cache.status())
            beside.run(source, scale.seconds)
            ingested += _ingested(cache.status()) - before
        if isinstance(source, Generator):
            source.close()
        del source  # TensorFlow's iterator, before what it leases from is closed
    return _figures(alone, beside, ingested)


def _figures(alone: Loop, beside: Loop, ingested: float) -> dict[str, float]:
    return {
        "kept": (alone.working / alone.steps) / (beside.working / beside.steps),
        "work_s": beside.working / beside.steps,
        "waited_share": beside.waiting / beside.elapsed,
        "mb_s": beside.steps * BATCH * PIXELS / beside.elapsed / 1e6,
        "ingested_mb_s": ingested / beside.elapsed / 1e6,
    }


@contextmanager
def _stopped(process: int) -> Iterator[None]:
    """Neither it nor what it has started computes meanwhile."""
    processes = [process, *descendants(process)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(processes):
            os.kill(pid, signal.SIGCONT)


def _ingested(status: dict[str, Any]) -> float:
    """Bytes, of whole shards: those there are, those that leave, and those that have left."""
    train = status["datasets"]["train"]
    made = train["shards"] + train["retired_shards"] + train["evicted_shards"]
    return float(made * _SHARD)


def _fill(server: S3Server, scale: Scale) -> None:
    say(f"filling the store with {scale.objects} objects of 64 MB")
    server.bucket(BUCKET)
    chance = random.Random(1)
    pixels = np.frombuffer(chance.randbytes(PIXELS), np.uint8)
    record = frames([encode_example({"label": 1, "image": pixels.tobytes()})])
    for number in range(scale.objects):
        server.put(BUCKET, {f"{number:04}.tfrecord": record * (64_000_000 // len(record))})


def _report(found: dict[str, dict[str, list[float]]], scale: Scale) -> Report:
    rows = [
        [
            name,
            values["kept"],
            [100 * share for share in values["waited_share"]],
            values["mb_s"] if name != _COMPUTING else "",
            values["ingested_mb_s"] if name != _COMPUTING else "",
        ]
        for name, values in found.items()
    ]
    heads = ["reader", "Python's speed, of alone", "waited in next(), %", "MB/s taken"]
    return Report(
        "2. A loop's own Python beside 600 MB/s",
        f"Records of {PIXELS:,} bytes, {BATCH} a batch, one every {1000 * INTERVAL:.0f} ms; the daemon "
        f"ingests over a link of {scale.link / 1e6:g} MB/s meanwhile. Sleep stands for the GPU.",
        [table([*heads, "MB/s ingested"], rows)],
        [
            bar
            for name in _HELD
            for bar in (
                Bar(f"{name}, of its speed alone", 0.95, found[name]["kept"], at_least=True),
                # A loop that is starved has all of Python's time.
                Bar(f"{name}, MB/s taken", 0.97 * PACE / 1e6, found[name]["mb_s"], at_least=True),
            )
        ],
        found,
    )
