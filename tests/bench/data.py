"""The records that every contender delivers, and the shards they lie in.

A record tells its own number: in `label`, and in the first and last eight bytes of its image. So
whoever delivers something else, or a part of it, is found out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.sampler.encoding import encode, infer
from cachecd_client import _core
from cachecd_client.schema import Schema

SHARD_BYTES = 64 << 20
_LAYOUT = 1  # of the folder; counts up when the records or their forms change
_LEAST_BATCHES = 8  # in a pass, however small the set
_LEAST_SHARDS = 4
_WINDOWS = 4096  # different images before they repeat but for their numbers

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A kind of record: an image of raw uint8 and a label."""

    name: str
    shape: tuple[int, ...]
    batch_size: int

    @property
    def image_bytes(self) -> int:
        return int(np.prod(self.shape))


CASES = {
    case.name: case
    for case in (
        Case("4kB", (4096,), 256),
        Case("64kB", (65536,), 64),
        Case("786kB", (512, 512, 3), 32),
    )
}


@dataclass(frozen=True)
class RecordSet:
    """About `megabytes` of records of one case, under `root`, in each contender's own form."""

    root: Path
    case: Case
    megabytes: float

    @cached_property
    def num_records(self) -> int:
        """A multiple of the batch size: a pass has no tail."""
        return self._records // self.batch_size * self.batch_size

    @cached_property
    def batch_size(self) -> int:
        return min(self.case.batch_size, max(1, self._records // _LEAST_BATCHES))

    @property
    def record_bytes(self) -> int:
        """Bytes of the arrays of one record: what every figure counts."""
        return self.case.image_bytes + 8

    @cached_property
    def schema(self) -> Schema:
        return infer(self.record(0))

    @property
    def _records(self) -> int:
        return max(_LEAST_BATCHES, int(self.megabytes * 1e6 / self.record_bytes))

    def record(self, number: int) -> Record:
        return {"image": image(self.case, number), "label": number}

    @property
    def files(self) -> list[str]:
        return [str(path) for path in sorted(self.folder("tfrecord").glob("*.tfrecord"))]

    def folder(self, form: str) -> Path:
        """Where the records lie in this form once `make` has put them there."""
        return self.root / f"{self.case.name}-{self.megabytes:g}MB-v{_LAYOUT}" / form

    def make(self, form: str, fill: Callable[[RecordSet, Path], None]) -> None:
        """Has `fill` write the records into the form's folder, unless they are there; all or nothing."""
        folder = self.folder(form)
        if folder.exists():
            return
        draft = folder.with_name(form + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        fill(self, draft)
        draft.rename(folder)

    @property
    def shard_bytes(self) -> int:
        """About SHARD_BYTES, less for a set so small that it would not fill several files."""
        return min(SHARD_BYTES, int(self.num_records * self.record_bytes / _LEAST_SHARDS))

    @property
    def shards(self) -> Iterator[range]:
        each = max(1, int(self.shard_bytes / self.record_bytes))
        for first in range(0, self.num_records, each):
            yield range(first, min(first + each, self.num_records))


def write_shards(records: RecordSet, folder: Path) -> None:
    """The TFRecord form: what the daemon's samplers would have written."""
    meta = json.dumps({"schema": records.schema.to_json()})
    for shard, numbers in enumerate(records.shards):
        writer = _core.ShardWriter(str(folder / f"{shard:05d}.tfrecord"))
        for number in numbers:
            assert writer.append(encode(records.schema, records.record(number)))
        writer.finish(meta)


def image(case: Case, number: int) -> NDArray[np.uint8]:
    """uint8 [*case.shape]: noise, with the number in its first and last eight bytes."""
    start = number * 61 % _WINDOWS
    flat = _noise(case.image_bytes)[start : start + case.image_bytes].copy()
    flat[:8] = flat[-8:] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    return flat.reshape(case.shape)


@lru_cache
def _noise(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, size + _WINDOWS, dtype=np.uint8)
