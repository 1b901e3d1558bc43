"""Samples of the status document: one a second for ten minutes, one a minute for two days, and one for each
epoch. Pure.

A sample has a value for each of these series. `queue` in a sample of a minute is the lowest of that minute,
so that a dip of the queue stays visible.

    cache/FIELD              cache/paused_s/REASON
    dataset/NAME/FIELD       dataset/NAME/cpu_s/STAGE     dataset/NAME/wall_s/STAGE
    job/DATASET/FIELD/JOB    wait_share and queue of the job's worst process; epoch and records of its lease
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

MOST_BYTES = 1 << 20  # of the file

_SECONDS, _MINUTES, _EPOCHS = 600, 2880, 1000
_MINUTE = 60.0
_MOST_SERIES = 512  # that a sample has; more than 30 datasets with a job each
_MOST_MEMORY = 64 << 20  # bytes that a file may take when it is unpacked

_CACHE = ("limit", "used", "reserved", "fetched_bytes")
_DATASET = (
    *("records", "data_bytes", "allocated", "share", "coverage", "bytes_per_second"),
    *("evicted_shards", "retired_bytes"),
)
_WORST = ("wait_share", "queue")  # of a job: its highest share, its lowest fill
_MAGIC = b"CACHECDH1"
_HEAD = struct.Struct(
    "<16sI"
)  # the digest of the rest, the length of the JSON in the unpacked rest

Document = Mapping[str, Any]


class Sample(NamedTuple):
    """`time`: seconds since 1970. `values`: one for each key, NaN if it is unknown."""

    time: float
    keys: tuple[str, ...]
    values: array[float]


class History:
    """At most 4,480 samples of 512 series, so at most 18 MB. `samples` and `text` may be called from any
    thread, while one thread calls `add`."""

    def __init__(self) -> None:
        self._rings: dict[str, deque[Sample]] = {
            "seconds": deque(maxlen=_SECONDS),
            "minutes": deque(maxlen=_MINUTES),
            "epochs": deque(maxlen=_EPOCHS),
        }
        self._newest: dict[str, float] = {}  # by key of a job's epoch
        self._lowest: dict[str, float] = {}  # fill of a queue in this minute
        self._minute = -math.inf  # the time of the last sample of a minute

    def add(self, document: Document, now: float) -> None:
        """Adds a sample. The caller calls this once a second. A sample of a minute, and of an epoch that
        begins, is added too if it is due. `now`: seconds since 1970; it never decreases."""
        now = round(
            now, 3
        )  # as `text` shows it, so that a client can name the last time that it has
        series = dict(islice(_series(document), _MOST_SERIES))
        last = self._rings["seconds"][-1].keys if self._rings["seconds"] else ()
        keys = tuple(series)
        keys = last if keys == last else keys  # so that equal keys are kept once
        self._rings["seconds"].append(Sample(now, keys, array("d", series.values())))
        for key, value in series.items():
            if key.startswith("job/") and key.split("/")[2] == "queue":
                # A NaN is no fill, and `min` keeps its first argument if the second is a NaN.
                self._lowest[key] = min(self._lowest.get(key, math.inf), value)
        if now - self._minute >= _MINUTE:
            lows = {key: low for key, low in self._lowest.items() if key in series and low < 2}
            values = array("d", {**series, **lows}.values())
            self._rings["minutes"].append(Sample(now, keys, values))
            self._minute, self._lowest = now, {}
        begun = {key: epoch for key, epoch in _epochs(document) if self._newest.get(key) != epoch}
        if begun:
            self._rings["epochs"].append(Sample(now, keys, array("d", series.values())))
        self._newest = dict(_epochs(document))

    def samples(self, ring: str, since: float = -math.inf) -> list[Sample]:
        """Returns the samples of "seconds", "minutes" or "epochs" after `since`, oldest first."""
        return [each for each in list(self._rings[ring]) if each.time > since]

    def text(self, since: float = -math.inf) -> Iterator[bytes]:
        """Yields JSON in pieces: for each ring a list of {"keys": [...], "rows": [[time, value, ...]]}.
        Consecutive samples with the same keys are together. An unknown value is null. A piece takes less
        than a millisecond, so that other threads can run between two."""
        for number, ring in enumerate(self._rings):
            yield b'%s"%s":[' % (b"," if number else b"{", ring.encode())
            for place, (keys, run) in enumerate(_runs(self.samples(ring, since))):
                # A job's name need not be Unicode.
                names = json.dumps(keys, ensure_ascii=False).encode("utf-8", "replace")
                yield b'%s{"keys":%s,"rows":[' % (b"," if place else b"", names)
                for row, sample in enumerate(run):
                    values = [None if math.isnan(each) else each for each in sample.values]
                    text = json.dumps([sample.time, *values])
                    yield (b"," if row else b"") + text.encode()
                yield b"]}"
            yield b"]"
        yield b"}"

    def encode(self, most: int = MOST_BYTES) -> bytes:
        """Returns the content of a file of at most `most` bytes. If not all samples fit, it lacks the
        oldest: first samples of seconds, then of minutes, then of epochs."""
        rings = {ring: list(samples) for ring, samples in self._rings.items()}
        while len(content := _pack(rings)) > most:
            longest = next((samples for samples in rings.values() if len(samples) > 1), None)
            if longest is None:
                return b""
            del longest[: (len(longest) + 1) // 2]
        return content

    @staticmethod
    def decode(content: bytes, now: float) -> History:
        """Restores a history. Ignores samples later than `now`, because the clock was set back since.
        ValueError if the content is damaged."""
        history = History()
        for ring, sample in _unpack(content):
            if sample.time <= now:
                history._rings[ring].append(sample)
        if minutes := history._rings["minutes"]:
            history._minute = minutes[-1].time
        if epochs := history._rings["epochs"]:
            series = dict(zip(epochs[-1].keys, epochs[-1].values, strict=True))
            history._newest = {key: value for key, value in series.items() if _is_epoch(key)}
        return history


def _series(document: Document) -> Iterator[tuple[str, float]]:
    """Yields the series of a document; the series of jobs come last."""
    cache = document["cache"]
    for field in _CACHE:
        yield f"cache/{field}", cache[field]
    for reason, seconds in cache["paused_s"].items():
        yield f"cache/paused_s/{reason}", seconds
    for name, dataset in document["datasets"].items():
        for field in _DATASET:
            yield f"dataset/{name}/{field}", dataset[field]
        yield f"dataset/{name}/skipped", dataset["skipped"]["units"]
        leases = sum(each["dataset"] == name for each in document["leases"])
        yield f"dataset/{name}/leases", leases
        for stage, seconds in dataset["ingest"].items():
            yield f"dataset/{name}/cpu_s/{stage}", seconds["cpu_s"]
            yield f"dataset/{name}/wall_s/{stage}", seconds["wall_s"]
    # Sorted, because each sample with another order keeps keys of its own.
    yield from sorted(_of_jobs(document))


def _of_jobs(document: Document) -> Iterator[tuple[str, float]]:
    yield from _epochs(document)
    records = {(each["dataset"], each["job"]): each["records"] for each in document["leases"]}
    for (dataset, job), count in records.items():
        yield f"job/{dataset}/records/{job}", count
    shares, fills = dict[str, float](), dict[str, float]()
    for row in document["trainers"]:
        share, fill = (f"job/{row['dataset']}/{field}/{row['job']}" for field in _WORST)
        shares[share] = max(row["wait_share"], shares.get(share, 0.0))
        fills[fill] = min(math.inf if row["queue"] is None else row["queue"], fills.get(fill, 2.0))
    yield from shares.items()
    yield from ((key, fill if fill <= 1 else math.nan) for key, fill in fills.items())


def _epochs(document: Document) -> Iterator[tuple[str, float]]:
    """Yields the newest leased epoch of each job."""
    newest: dict[str, float] = {}
    for each in document["leases"]:
        key = f"job/{each['dataset']}/epoch/{each['job']}"
        newest[key] = max(newest.get(key, 0), each["epoch"])
    yield from newest.items()


def _is_epoch(key: str) -> bool:
    return key.startswith("job/") and key.split("/")[2] == "epoch"


def _runs(samples: Iterable[Sample]) -> Iterator[tuple[tuple[str, ...], list[Sample]]]:
    for keys, run in groupby(samples, key=lambda sample: sample.keys):
        yield keys, list(run)


def _pack(rings: Mapping[str, list[Sample]]) -> bytes:
    """Packs each run of samples with the same keys as a matrix of float64. A row is stored as its
    difference (XOR) from the row before, and bytes of the same place are together: most of them are 0."""
    runs = [(ring, keys, run) for ring, samples in rings.items() for keys, run in _runs(samples)]
    text = json.dumps([[ring, keys, len(run)] for ring, keys, run in runs]).encode()
    parts = [text]
    for _, _, run in runs:
        rows = b"".join(struct.pack("=d", each.time) + each.values.tobytes() for each in run)
        matrix = np.frombuffer(rows, "<u8").reshape(len(run), -1).copy()
        matrix[1:] ^= matrix[:-1].copy()
        parts.append(np.ascontiguousarray(matrix).view(np.uint8).reshape(-1, 8).T.tobytes())
    packed = zlib.compress(b"".join(parts))
    return _MAGIC + _HEAD.pack(_digest(packed), len(text)) + packed


def _unpack(content: bytes) -> Iterator[tuple[str, Sample]]:
    """ValueError if the content is not what `_pack` returned."""
    begin = len(_MAGIC) + _HEAD.size
    if len(content) < begin or not content.startswith(_MAGIC):
        raise ValueError(f"found {content[:20]!r}, expected {_MAGIC!r}")
    digest, length = _HEAD.unpack_from(content, len(_MAGIC))
    if digest != _digest(content[begin:]):
        raise ValueError("its digest does not match its content")
    rest = zlib.decompressobj().decompress(content[begin:], _MOST_MEMORY)
    place = length
    for ring, names, count in json.loads(rest[:length]):
        keys = tuple(names)
        size = count * (len(keys) + 1) * 8
        shuffled = np.frombuffer(rest[place : place + size], np.uint8).reshape(8, -1)
        matrix = np.ascontiguousarray(shuffled.T).view("<u8").reshape(count, -1)
        values = np.bitwise_xor.accumulate(matrix, axis=0).view("<f8")
        place += size
        for row in values.tolist():
            yield ring, Sample(row[0], keys, array("d", row[1:]))


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
