"""Formats: what the units of a source are, and how their bytes become records. One format a file.

A format knows no store: it is given the bytes that it asks for, and pours records into the draft.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cachecd.config import DatasetConfig
from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.sampler.sources.content import Content
from cachecd.stores.extras import extra

# Of the record that comes next: its ordinal, and its offset (0: not known, or the start).
Position = tuple[int, int]


class Source(Protocol):
    """One dataset's format together with its transform."""

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        """Why a unit cannot be used in shards of `capacity` bytes, as far as its key and size tell;
        None if it has to be fetched to know. SourceUnreachableError if nothing can be told yet."""

    def span(self, unit: Unit) -> tuple[int, int] | None:
        """Which bytes of the object will be wanted, one after the other: `Content.chunks`, which are
        fetched ahead of `pour`. None where only the content tells what is to be read."""

    def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[Position, int | None]:
        """Adds the unit's records from `unit.record` on, up to `unit.stop`, to the shard. Gives its
        position before each record or, where Python never looks at one alone, before each run of a bounded
        length. It may be sent the ordinal of a record: then the next run ends before that record.

        It ends when the unit is done. If the shard is full, it gives the position of the record that did
        not fit, and adds that record first when it is asked again: by then `shard` has gone on. Whoever
        pours the unit from a position on continues exactly there. UnitError if the unit cannot be used;
        what was added before stays. Nothing depends on where the chunks are cut, or on time.
        """


def open_source(
    config: DatasetConfig, classes: tuple[str, ...], memory: float = float("inf")
) -> Source:
    """The source of a dataset. `classes` are the names of the label's classes, `memory` is what the process
    may take.

    Imports the transform's modules, and raises what they raise.
    """
    from cachecd.sampler.sources.files import Files
    from cachecd.sampler.sources.records import Records
    from cachecd.sampler.sources.tfrecord import Examples, Verbatim
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
            from cachecd.sampler.sources.webdataset import WebDataset

            return Records(WebDataset(), transform)
        case "npy":
            from cachecd.sampler.sources.npy import Arrays

            assert source.array is not None, "the configuration requires it"
            return Records(Arrays(source.array), transform)
        case "python":
            from cachecd.sampler.sources.python import Python

            return Records(Python(source), transform)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.sources.parquet.rows import Parquet

            return Records(Parquet(source, transform is not None, memory), transform)
        case other:
            raise NotImplementedError(f"format {other}")
