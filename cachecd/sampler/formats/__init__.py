"""Formats turn the bytes of units into records. Each format has its own file.

A format knows no store: it requests bytes from `Content`, and adds records to the draft.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cachecd.config import DatasetConfig
from cachecd.model import Unit
from cachecd.sampler.draft import Draft, TokenShapes
from cachecd.sampler.formats.content import Content
from cachecd.stores.extras import extra

# Ordinal and offset of the next record in a unit. Offset 0: unknown, or the start of the unit.
Position = tuple[int, int]


class PreparedFormat(Protocol):
    """One dataset's format together with its transform."""

    @property
    def tokens(self) -> TokenShapes:
        """The features that hold tokens."""

    @property
    def held(self) -> int:
        """About how many bytes of records are in memory for each open unit."""

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
    from cachecd.sampler.formats.grouped import Grouped
    from cachecd.sampler.formats.npy import Arrays
    from cachecd.sampler.formats.python import Python
    from cachecd.sampler.formats.records import Format, Records
    from cachecd.sampler.formats.tfrecord import Examples, Verbatim
    from cachecd.sampler.formats.webdataset import WebDataset
    from cachecd.sampler.transforms import build
    from cachecd.sampler.transforms.groups import group_steps

    source = config.source

    def decoded() -> Format:
        match source.format:
            case "files":
                return Files(source, classes)
            case "tfrecord":
                return Examples()
            case "webdataset":
                return WebDataset()
            case "npy":
                assert source.array is not None, "the configuration requires it"
                return Arrays(source.array)
            case "python":
                return Python(source)
            case "parquet":
                with extra("parquet", "format parquet"):
                    from cachecd.sampler.formats.parquet.rows import Parquet

                return Parquet(source, bool(config.transform), memory)
            case "jsonl":
                with extra("text", "format jsonl"):
                    from cachecd.sampler.formats.jsonl.reader import JsonLines

                return JsonLines(source, bool(config.transform))

    if source.format == "tfrecord" and not config.transform:
        return Verbatim()
    if steps := group_steps(config.transform, source):
        return Grouped(decoded(), steps)
    return Records(decoded(), build(config.transform))
