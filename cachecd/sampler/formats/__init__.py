"""Formats turn the bytes of units into records. Each format has its own file.

A format knows no store: it requests bytes from `Content`, and adds records to the draft.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cachecd.config import DatasetConfig
from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.sampler.formats.content import Content
from cachecd.stores.extras import extra

# Ordinal and offset of the next record in a unit. Offset 0: unknown, or the start of the unit.
Position = tuple[int, int]


class PreparedFormat(Protocol):
    """One dataset's format together with its transform."""

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        """Returns the reason a unit cannot be used in shards of `capacity` bytes, or None. Fetches nothing.
        SourceUnreachableError: too early to decide, because the listing is incomplete."""

    def span(self, unit: Unit) -> tuple[int, int] | None:
        """Returns the range of the object that `pour` reads in sequence (`Content.chunks`); it is fetched
        ahead. None if only the content decides which bytes are read."""

    def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[Position, int | None]:
        """Adds the unit's records from `unit.record` up to `unit.stop` to the shard. The result never
        depends on time, or on how the bytes are divided into chunks.

        Yields the position before each record, or before each run of records if records are copied in
        runs. If the caller sends the ordinal of a record, the next run ends before that record. If the
        shard is full, yields the position of the record that did not fit. When it is resumed, `shard` is
        the next shard, and it adds this record first. A later call with a yielded position continues with
        the same record. UnitError: the rest of the unit cannot be used; records that were added stay.
        """


def open_format(
    config: DatasetConfig, classes: tuple[str, ...], memory: float = float("inf")
) -> PreparedFormat:
    """Returns the format of a dataset together with its transform. `classes`: the class names of the label.
    `memory`: bytes that the process may use. ConfigError if an import fails."""
    from cachecd.sampler.formats.files import Files
    from cachecd.sampler.formats.npy import Arrays
    from cachecd.sampler.formats.python import Python
    from cachecd.sampler.formats.records import Records
    from cachecd.sampler.formats.tfrecord import Examples, Verbatim
    from cachecd.sampler.formats.webdataset import WebDataset
    from cachecd.sampler.transforms import build

    source = config.source
    transform = build(config.transform)
    match source.format:
        case "files":
            return Records(Files(source, classes), transform)
        case "tfrecord" if transform is None:
            return Verbatim()
        case "tfrecord":
            return Records(Examples(), transform)
        case "webdataset":
            return Records(WebDataset(), transform)
        case "npy":
            assert source.array is not None, "the configuration requires it"
            return Records(Arrays(source.array), transform)
        case "python":
            return Records(Python(source), transform)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.formats.parquet.rows import Parquet

            return Records(Parquet(source, transform is not None, memory), transform)
        case "jsonl":
            with extra("text", "format jsonl"):
                from cachecd.sampler.formats.jsonl.reader import JsonLines

            return Records(JsonLines(source, transform is not None), transform)
