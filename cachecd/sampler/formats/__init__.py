"""Formats: the units of a source, and how their bytes become records. One format for each file.

A format knows no store: it requests bytes, and adds records to the draft.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cachecd.config import DatasetConfig
from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.sampler.formats.content import Content
from cachecd.stores.extras import extra

# Of the record that comes next: its ordinal, and its offset (0: not known, or the start).
Position = tuple[int, int]


class PreparedFormat(Protocol):
    """One dataset's format together with its transform."""

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        """Returns why a unit cannot be used in shards of `capacity` bytes, judged by its key and size; None
        if only fetching can tell. SourceUnreachableError if it cannot be judged yet."""

    def span(self, unit: Unit) -> tuple[int, int] | None:
        """Returns the bytes of the object that will be read in sequence (`Content.chunks`). They are
        fetched before `pour`. None if only the content decides which bytes are read."""

    def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[Position, int | None]:
        """Adds the unit's records from `unit.record` on, up to `unit.stop`, to the shard. Yields its
        position before each record; or, if Python does not look at single records, before each run of a
        bounded length. The caller may send the ordinal of a record: then the next run ends before that
        record.

        Ends when the unit is done. If the shard is full, yields the position of the record that did not
        fit, and adds this record first when it is resumed: by then `shard` is the next shard. Pouring the
        unit from a yielded position continues exactly there. UnitError if the unit cannot be used; records
        that were added before stay. The result never depends on time, or on where the chunks are cut.
        """


def open_format(
    config: DatasetConfig, classes: tuple[str, ...], memory: float = float("inf")
) -> PreparedFormat:
    """Returns the source of a dataset. `classes`: the names of the label's classes. `memory`: the bytes
    that the process may take.

    Imports the transform's modules. Raises their errors unchanged.
    """
    from cachecd.sampler.formats.files import Files
    from cachecd.sampler.formats.records import Records
    from cachecd.sampler.formats.tfrecord import Examples, Verbatim
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
            from cachecd.sampler.formats.webdataset import WebDataset

            return Records(WebDataset(), transform)
        case "npy":
            from cachecd.sampler.formats.npy import Arrays

            assert source.array is not None, "the configuration requires it"
            return Records(Arrays(source.array), transform)
        case "python":
            from cachecd.sampler.formats.python import Python

            return Records(Python(source), transform)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.formats.parquet.rows import Parquet

            return Records(Parquet(source, transform is not None, memory), transform)
        case other:
            raise NotImplementedError(f"format {other}")
