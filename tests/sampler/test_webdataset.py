"""Format `webdataset`: tar files as others write them, and as damage leaves them."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd.config import DatasetConfig
from cachecd.sampler.sources import extensions, open_source, packed, tar
from cachecd.sampler.sources import webdataset as grouping
from cachecd_client._core import decode_example, encode_example
from cachecd_client.schema import Feature
from tests.contracts.source import Bench, Shard, SourceContract
from tests.sampler import steps

CONFIG = {"source": {"url": "file:///nowhere", "format": "webdataset"}}
RNG = np.random.default_rng(9)
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}
LONG = "a-very-long-folder-of-some-project/" * 4

Sample = tuple[str, dict[str, bytes]]  # key, and content by extension


def samples(unit: int) -> list[Sample]:
    """30 of them, with names of all lengths."""
    sizes = RNG.integers(0, 4000, 30)
    return [
        (
            f"{LONG if n % 3 == 0 else ''}{unit}/{n:03d}",
            {"cls": b"%d\n" % (100 * unit + n), "jpg": RNG.bytes(int(size))},
        )
        for n, size in enumerate(sizes)
    ]


def archive(members: Iterable[tuple[str, bytes] | tarfile.TarInfo], kind: str = "pax") -> bytes:
    """A tar file by the standard library, which WebDataset's own writer uses too."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[kind]) as writer:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                writer.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                writer.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def packed_samples(of: Iterable[Sample], kind: str = "pax") -> bytes:
    return archive(
        ((f"{key}.{name}", body) for key, files in of for name, body in files.items()), kind
    )


def encoded(sample: Sample) -> bytes:
    key, files = sample
    return encode_example({"__key__": key.encode(), "cls": int(files["cls"]), "jpg": files["jpg"]})


def decoded(shard: Shard) -> list[dict[str, Any]]:
    """Single values, by feature."""
    return [
        {name: values[0] for name, (_, values) in decode_example(record).items()}
        for _, _, record in shard.records
    ]


SAMPLES = [samples(unit) for unit in range(4)]


class TestWebDataset(SourceContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return [
            packed_samples(of, form) for of, form in zip(SAMPLES, [*FORMATS, "gnu"], strict=True)
        ]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, of in enumerate(SAMPLES):
            for ordinal, sample in enumerate(of):
                yield unit, ordinal, encoded(sample)

    def test_what_is_left_of_a_full_shard_is_not_read_from_the_start(self, bench: Bench):
        bench.cut = 1024
        bench.pour(self.objects())
        assert bench.taken < 1.15 * sum(map(len, self.objects()))
