"""Makes a shard of a few units in this process, as a worker would. Reads the records back, and deletes
the shard. Needs no cache and no daemon."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cachecd.config import Config, SourceConfig
from cachecd.config.keypattern import alike, other_forms
from cachecd.daemon.workers import worker_setup
from cachecd.errors import ConfigError, UnitError
from cachecd.listing.classes import ClassNames
from cachecd.model import (
    MOST_LANES,
    Cursor,
    ObjectInfo,
    Shape,
    StageSeconds,
    StreamId,
    Unit,
    encoded,
)
from cachecd.sampler.formats import open_format
from cachecd.sampler.formats.files import label_of
from cachecd.sampler.messages import Effort, FromStream, Grant, Open, Sealed, Units, Working
from cachecd.sampler.meter import METER
from cachecd.sampler.origin import Origin
from cachecd.sampler.throttle import Throttle
from cachecd.sampler.usercode import search_first
from cachecd.sampler.worker_stream import WorkerStream
from cachecd.stores.backend import LeftOut
from cachecd.stores.fetch import Store
from cachecd.units.selection import empty_side, held_out, selection_of
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import Sidecar, decode_example, read_record
from cachecd_client.schema import Feature, Schema

# The limits of a sample. They are small, because a transform may take a second for each unit.
_MOST_UNITS, _MOST_BYTES = 32, 16 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a trainer would get it. `unit` and `ordinal` name its place in the source."""

    unit: Unit
    ordinal: int
    values: dict[str, Any]


@dataclass(slots=True)
class Sample:
    """The result of fetching and transforming `units`.

    `records`: the first records; `outcome.records` is the number of all records. `schema`: None without
    records. `errors`: the errors that skipped records, then the errors that skipped units. A unit that is
    refused by name or size has no error. `classes`: the label's classes by number. `numbered`: these
    numbers are final. `stages`: the work, by stage; every record was timed, except in the first of several
    units, which also loads libraries. `decoding`: see sample_view.measure_decoding.
    """

    units: tuple[Unit, ...]
    outcome: Sealed
    schema: Schema | None = None
    records: list[Record] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    numbered: bool = True
    stages: dict[str, StageSeconds] = field(default_factory=dict)
    decoding: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether the units were read completely."""
        return self.outcome.end == "pass"

    @property
    def read(self) -> int:
        """The number of units that were read to their end."""
        after = self.outcome.after
        return after.place - len(after.lanes) - len(self.outcome.skipped)


class Sampler:
    """Takes samples of one dataset of a configuration."""

    def __init__(self, config: Config, name: str, steps: int | None = None) -> None:
        """`steps`: run only this many steps of the transform. ConfigError if the dataset does not exist, or
        if no installed package can read its source."""
        if name not in config.datasets:
            raise ConfigError(
                f"there is no dataset {name!r}: choose one of {', '.join(config.datasets)}"
            )
        self._config = config
        self.name = name
        transform = config.datasets[name].transform[:steps]
        self._dataset = config.datasets[name].model_copy(update={"transform": transform})
        self._source = self._dataset.source
        self.url = self._source.url
        # The objects that the last complete listing omitted, and the part that the split holds out.
        self.left_out, self.held_out = LeftOut(), ""
        connections = config.sampler.connections
        self._store = open_unit_store(self._source, connections, left_out=self.left_out)

    def first(self, most: int) -> tuple[Unit, ...]:
        """Returns the first listed units that the dataset takes: 1 to `most` units, all from one page.

        SourceUnreachableError; ConfigError if there is no such unit.
        """
        self._import_as_samplers_do()  # the user's reader may list the units
        takes, listed = selection_of(self._dataset), 0
        for page in list_units(self._source, self._store):
            listed += len(page)
            if taken := page if takes is None else list(filter(takes, page)):
                return tuple(map(_unit, range(most), taken))
        if not listed:
            raise ConfigError(f"no objects under {self.url}: check `source.url` and the patterns")
        if self._dataset.split is not None:
            raise ConfigError(f"datasets.{self.name}: {empty_side(self._dataset, listed)}")
        raise ConfigError(
            f"datasets.{self.name}.partition: this node's part has no unit of the {listed} units: "
            "lower `partition.count`"
        )

    def usable(self, most: int) -> Unit:
        """Returns the first unit whose name and size are acceptable. If the first `most` units are all
        refused, returns the first unit."""
        units = self.first(most)
        source = open_format(self._dataset, self._classes(units)[0])
        capacity = self._config.cache.shard_size
        return next((u for u in units if source.refusal(u, capacity) is None), units[0])

    def beginning(self) -> tuple[Unit, ...]:
        """Returns some of the first units: enough for an estimate, at most one shard."""
        units = self.first(_MOST_UNITS)
        sizes = list(itertools.accumulate(unit.size for unit in units))
        most = min(self._config.cache.shard_size, _MOST_BYTES)
        return units[: max(1, sum(size <= most for size in sizes))]

    def count(self, pages: int) -> tuple[int, int, bool]:
        """Returns the number of the dataset's units in the first `pages` pages of the listing, their bytes,
        and whether the listing ends there."""
        takes, listing = selection_of(self._dataset), list_units(self._source, self._store)
        units = [unit for page in itertools.islice(listing, pages) for unit in page]
        sizes = [unit.size for unit in units if takes is None or takes(unit)]
        is_whole = next(listing, None) is None
        if (split := self._dataset.split) is not None:
            self.held_out = held_out(split, self._source.format, units, is_whole)
        return len(sizes), sum(sizes), is_whole

    def named(self, key: str, begin: int = 0) -> Unit:
        """Returns the unit that begins at byte `begin` of the object `key`. Lists from shortly before the
        key.

        UnitError if the unit is not listed; the message names the units of the object.
        """
        begins: list[int] = []
        for listed in _listed_near(self._source, self._store, key):
            if listed.key == key:
                if listed.begin == begin:
                    return _unit(0, listed)
                begins.append(listed.begin)
        if begins:
            shown = ", ".join(map(str, begins[:5])) + (" ..." if len(begins) > 5 else "")
            raise UnitError(
                f"no unit of {key!r} begins at byte {begin}; its units begin at {shown}"
            )
        for other in other_forms(key):
            if any(u.key == other for u in _listed_near(self._source, self._store, other)):
                raise UnitError(alike(key, other))
        raise UnitError(
            f"the source lists no object {key!r}. Give the key relative to {self.url}, or with "
            "source.join the text at *"
        )

    def head(self, unit: Unit, length: int) -> bytes:
        """Returns the first bytes of a unit, or no bytes if it cannot be read."""
        stop = unit.begin + min(length, unit.size)
        try:
            read = self._store.get(unit.key, None, unit.etag, unit.begin, stop)
            return bytes(asyncio.run(read))
        except UnitError:
            return b""

    def take(self, units: tuple[Unit, ...], most: int) -> Sample:
        """Makes a shard of these units and reads its first `most` records back.

        An object that fails is skipped with its reason, as in a worker. SourceError or ConfigError if no
        unit can be read. The transform's output goes to stderr.
        """
        self._import_as_samplers_do()
        errors: list[Exception] = []
        classes, numbered = self._classes(units)
        with tempfile.TemporaryDirectory(prefix="cachecd-sample-") as folder:
            path = Path(folder, "shard.tfrecord")
            with contextlib.redirect_stdout(sys.stderr):
                sealed, efforts = asyncio.run(self._fill(path, units, classes, errors))
            sample = Sample(units, sealed, errors=errors, classes=classes, numbered=numbered)
            sample.stages = {**_total(efforts[:1]), **_total(efforts[1:])}
            if sealed.records:
                _read_back(path, sample, most)
        return sample

    async def _fill(
        self, path: Path, units: tuple[Unit, ...], classes: tuple[str, ...], errors: list[Exception]
    ) -> tuple[Sealed, list[Effort]]:
        """Makes the first shard of a stream with these units. The first effort is that of the first unit,
        if there are several."""
        setup, sent = worker_setup(self._config), list[FromStream]()
        origin = Origin(self._dataset, setup.connections, None, setup.memory)
        origin.read_with(classes)  # imports do not count for the rate
        stream, capacity = StreamId(self.name, "", 0), self._config.cache.shard_size
        shape = Shape(1, 1, MOST_LANES, capacity, 0)
        opened = Open(stream, Cursor(), (), None, shape, None, classes, remade={})
        efforts = list[Effort | None]()

        def begin_unit(unit: Unit) -> None:
            # The lanes take turns, so the first unit has given a record before the second unit begins.
            if unit is not units[0] and not efforts:
                efforts.append(METER.take())

        worker_stream = WorkerStream(
            *(opened, origin, Throttle(setup.bandwidth), setup.connections),
            *(sent.append, begin_unit, errors.append),
        )
        METER.begin_anew(1, 1)
        try:
            worker_stream.list_units(Units(stream, 0, 0, units, "end"))
            worker_stream.grant(Grant(stream, 0, path=str(path)))
            await worker_stream.work()
        finally:
            await worker_stream.close()
            METER.begin_anew()
        reports = [message for message in sent if isinstance(message, Sealed | Working)]
        efforts += [message.effort for message in reports]
        [sealed] = [message for message in reports if isinstance(message, Sealed)]
        return sealed, [each for each in efforts if each is not None]

    def _import_as_samplers_do(self) -> None:
        """Makes modules of the working directory importable, as `python -m cachecd.sampler` does."""
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        search_first([str(folder) for folder in self._config.sampler.path])

    def _classes(self, units: tuple[Unit, ...]) -> tuple[tuple[str, ...], bool]:
        """Returns the label's classes by number, and whether the numbers are final. If `classes` is not
        configured, only a complete listing makes them final."""
        source = self._source
        if not source.awaits_classes:
            return source.classes, True
        names = (label_of(source, unit.key, unit.label) for unit in units)
        return ClassNames().extended(filter(None, names)).names, False


def _total(efforts: Sequence[Effort]) -> dict[str, StageSeconds]:
    total: dict[str, StageSeconds] = {}
    for effort in efforts:
        for stage, seconds in effort.stages.items():
            total[stage] = total.get(stage, StageSeconds()).plus(seconds)
    return total


def _unit(number: int, listed: ObjectInfo) -> Unit:
    return Unit(number, listed.key, listed.size, listed.etag, listed.begin, listed.label)


def _listed_near(source: SourceConfig, store: Store, key: str) -> Iterator[ObjectInfo]:
    """Yields the part of the listing that ends at the key's place in the order."""
    wanted, before = encoded(key), ""
    # Tables and readers may have any order, and a joined unit's key is not an object's key.
    ordered = not (source.manifest or source.reader or source.join)
    # Few objects lie between the key without its last character and the key.
    for page in list_units(source, store, key[:-1]):
        keys = [before, *(listed.key for listed in page)]
        ordered = ordered and all(encoded(a) <= encoded(b) for a, b in pairwise(keys))
        yield from page
        before = keys[-1]
        if ordered and encoded(before) > wanted:
            return


def _read_back(path: Path, sample: Sample, most: int) -> None:
    sidecar = Sidecar.read(f"{path}.idx")
    schema = Schema.from_json(json.loads(sidecar.meta)["schema"])
    by_number = {unit.number: unit for unit in sample.units}
    places = zip(sidecar.offsets[:most], sidecar.units, sidecar.ordinals, strict=False)
    for offset, unit, ordinal in places:
        stored = decode_example(read_record(str(path), int(offset)))
        values = {
            feature.name: _value(feature, stored.get(feature.name, ("", []))[1])
            for feature in schema.features
            if feature.shape is None or feature.name in stored
        }
        sample.records.append(Record(by_number[int(unit)], int(ordinal), values))
    sample.schema = schema


def _value(feature: Feature, stored: list[Any]) -> Any:
    """Returns the value of a feature: bytes, a list of bytes, or an array. bfloat16 is returned as
    uint16."""
    if feature.dtype == "bytes":
        return stored[0] if feature.shape == () and stored else stored
    dtype = np.dtype("uint16" if feature.dtype == "bfloat16" else feature.dtype)
    little = dtype.newbyteorder("<")
    array = np.frombuffer(b"".join(stored), little) if feature.raw else np.array(stored, dtype)
    return array if feature.shape is None else array.reshape(feature.shape)
