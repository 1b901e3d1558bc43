"""What every format must do. A test class inherits this and says what its objects hold."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Buffer

from cachecd.config import DatasetConfig
from cachecd.errors import UnitError
from cachecd.model import Cursor, ObjectInfo, Unit
from cachecd.sampler.draft import Draft, end_text
from cachecd.sampler.filling import Filling
from cachecd.sampler.formats import Position, PreparedFormat, open_format
from cachecd_client._core import Sidecar, decode_example, encode_example, read_record
from cachecd_client.schema import Schema

CAPACITY = 64 << 10
EACH_CAPACITY = [20 << 10, pytest.param(CAPACITY, marks=pytest.mark.long)]


@dataclass
class Shard:
    """A sealed shard read back: (unit, ordinal, record) in order."""

    records: list[tuple[int, int, bytes]]
    file: bytes
    sidecar: bytes = field(default=b"", compare=False)


@dataclass
class Given:
    body: bytes
    chunks: AsyncIterator[Buffer]
    key: str
    gone: bool
    taken: Callable[[int], None]

    @property
    def objects(self) -> list[ObjectInfo]:
        """As if its halves were joined."""
        half = len(self.body) // 2
        return [ObjectInfo("first", half), ObjectInfo("rest", len(self.body) - half)]

    async def find(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.body))

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> bytes:
        assert 0 <= start <= stop <= len(self.body)
        return self._part(slice(start, stop))

    async def tail(self, length: int, key: str | None = None, etag: str = "") -> tuple[int, bytes]:
        return len(self.body), self._part(slice(max(0, len(self.body) - length), None))

    def _part(self, where: slice) -> bytes:
        if self.gone:
            raise UnitError("gone")
        part = self.body[where]
        self.taken(len(part))
        return part

    def list(self) -> Iterator[list[ObjectInfo]]:
        yield [ObjectInfo(self.key, len(self.body))]


@dataclass
class Bench:
    """Pours objects into shards, as the worker does, but without store or process."""

    source: PreparedFormat
    folder: Path
    capacity: int = CAPACITY
    cut: int = 1 << 20  # length of the chunks in which objects arrive
    suffix: str = ""  # of the objects' names
    lanes: int = 1
    schema: Schema | None = None
    set_aside: dict[int, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)  # records that were passed over
    reasons: list[str] = field(default_factory=list)
    taken: int = 0  # bytes of the objects that were asked for
    gone: set[int] = field(default_factory=set)  # units that cannot be fetched

    def pour(self, objects: list[bytes], keys: list[str] | None = None) -> list[Shard]:
        units = [
            Unit(number, keys[number] if keys else self.key(number), len(body))
            for number, body in enumerate(objects)
        ]
        return self.pour_slices(units, objects)

    def pour_slices(self, todo: list[Unit], objects: list[bytes]) -> list[Shard]:
        """Each shard by itself, from what the shard before it left."""
        shards: list[Shard] = []
        while todo:
            path = str(self.folder / f"{len(shards)}")
            draft = self._draft(path)
            before = [(u.number, u.record, u.stop) for u in todo]
            todo = asyncio.run(self._fill(draft, todo, objects))
            if draft.records:
                draft.seal({})
                shards.append(read_back(Path(draft.path)))
            draft.abort()
            assert [(u.number, u.record, u.stop) for u in todo] != before, "no progress"
        return shards

    def stream(self, objects: list[bytes], killed: Callable[[int], bool]) -> list[Shard]:
        """One shard after the other by a stream, which is begun anew at its cursor before each shard that
        is `killed`."""
        return asyncio.run(self._stream(objects, killed))

    async def _stream(self, objects: list[bytes], killed: Callable[[int], bool]) -> list[Shard]:
        listed = [Unit(number, self.key(number), len(body)) for number, body in enumerate(objects)]
        cursor, end = Cursor(), ""
        shards: list[Shard] = []
        filling: Filling | None = None
        while end != "pass":
            path = str(self.folder / f"{len(shards)}")
            if filling is None or killed(len(shards)):
                if filling is not None:
                    await filling.release_lanes()
                draft = self._draft(path, skips=0)
                units = [listed[lane.unit] for lane in cursor.lanes]
                filling = Filling(_Given(self, objects), self.lanes, cursor, units)
                filling.feed(0, cursor.place, listed[cursor.place :], "end")
            draft.begin_shard(path, {"number": len(shards)})
            end = await filling.fill(draft)
            assert filling.shard is not None
            cursor = Cursor.unpack(filling.cursor().pack())
            part = filling.shard
            text = end_text(part.before, cursor, part.ended, draft.num_passed, part.skipped)
            draft.seal(text)
            shards.append(read_back(Path(path)))
        return shards

    def key(self, number: int) -> str:
        return f"{number:04d}{self.suffix}"

    def described(self, schema: Schema) -> None:
        self.schema = schema

    def _draft(self, path: str, **more: Any) -> Draft:
        tokens = self.source.tokens
        return Draft(path, self.capacity, self.schema, self.described, {}, tokens=tokens, **more)

    async def _fill(self, draft: Draft, todo: list[Unit], objects: list[bytes]) -> list[Unit]:
        filling = Filling(_Given(self, objects), self.lanes)
        filling.feed(0, 0, todo, "end")
        await filling.fill(draft)
        assert filling.shard is not None
        self.set_aside |= {one.unit: one.reason for one in filling.shard.skipped}
        self.passed += [example for each in draft.passed for example in each.examples]
        self.reasons += [each.reason for each in draft.passed]
        after = filling.cursor()
        await filling.release_lanes()
        begun = [(todo[lane.place], lane) for lane in after.lanes]
        left = [replace(unit, record=lane.record, offset=lane.offset) for unit, lane in begun]
        return left + todo[after.place :]

    def _took(self, length: int) -> None:
        self.taken += length

    async def _chunks(self, body: bytes, unit: Unit) -> AsyncIterator[bytes]:
        span = self.source.span(unit)
        if span is None:
            return
        if unit.number in self.gone:
            raise UnitError("gone")
        body = body[slice(*span)]
        for start in range(0, len(body), self.cut) if body else (0,):
            chunk = body[start : start + self.cut]
            self._took(len(chunk))
            yield chunk


@dataclass
class _Given:
    """As filling.Supply has it."""

    bench: Bench
    objects: list[bytes]
    units: list[Unit] = field(default_factory=list)

    def add(self, unit: Unit) -> int:
        self.units.append(unit)
        return len(self.units) - 1

    def refusal(self, unit: Unit) -> str | None:
        return self.bench.source.refusal(unit, self.bench.capacity)

    def in_hand(self, unit: Unit) -> int:
        return 0

    def pour(self, handle: int, draft: Draft) -> AsyncGenerator[Position, int | None]:
        unit = self.units[handle]
        gone = unit.number in self.bench.gone
        body = self.objects[unit.number]
        content = Given(body, self.bench._chunks(body, unit), unit.key, gone, self.bench._took)
        return self.bench.source.pour(unit, content, draft)

    def work(self, unit: Unit) -> None:
        """Nobody watches."""

    def reached(self, handle: int, position: Position) -> None:
        """Nothing is fetched ahead."""

    def leave(self, handle: int, error: UnitError | None = None) -> None:
        """Nothing is kept."""

    async def current_version(self, key: str) -> tuple[str, int]:
        raise AssertionError("the listing is always right")

    def after_step(self) -> None:
        """Nobody listens."""


def read_back(path: Path) -> Shard:
    sidecar = Sidecar.read(f"{path}.idx")
    records = [read_record(str(path), int(offset)) for offset in sidecar.offsets]
    names = zip(sidecar.units.tolist(), sidecar.ordinals.tolist(), records, strict=True)
    return Shard(list(names), path.read_bytes(), Path(f"{path}.idx").read_bytes())


class FormatContract(ABC):
    """Inherit, and say what a dataset's objects are and which records they hold."""

    config: dict[str, Any]
    """Of the dataset."""
    suffix = ""
    """Of the objects' names."""

    @abstractmethod
    def objects(self) -> list[bytes]:
        """Contents of some objects, all sound; more than fits into one shard of CAPACITY."""

    @abstractmethod
    def records(self) -> Iterator[tuple[int, int, bytes]]:
        """(unit, ordinal, record) of all of them, in order."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(self.open(), tmp_path, suffix=self.suffix)

    def open(self) -> PreparedFormat:
        return open_format(DatasetConfig.model_validate(self.config), ())

    @pytest.mark.parametrize("capacity", EACH_CAPACITY)
    def test_every_record_is_written_once_and_in_order(self, bench: Bench, capacity: int):
        bench.capacity = capacity
        shards = bench.pour(self.objects())
        assert len(shards) > 1, "the objects are too small to test what is left over"
        assert [r for shard in shards for r in shard.records] == list(self.records())
        assert bench.set_aside == {}

    @pytest.mark.parametrize("cut", [37, pytest.param(33_333, marks=pytest.mark.long)])
    def test_mixed_with_others_every_record_of_a_unit_is_written_once_and_in_order(
        self, bench: Bench, tmp_path: Path, cut: int
    ):
        bench.lanes = 16
        shards = bench.pour(self.objects())
        for unit, records in groupby(self.records(), key=lambda record: record[0]):
            poured = [r for shard in shards for r in shard.records if r[0] == unit]
            assert poured == list(records)
        assert bench.set_aside == {}
        (tmp_path / "cut").mkdir()
        other = Bench(self.open(), tmp_path / "cut", cut=cut, lanes=16, suffix=self.suffix)
        assert other.pour(self.objects()) == shards

    @pytest.mark.parametrize("capacity", EACH_CAPACITY)
    def test_a_part_of_a_unit_is_written_alone_though_nobody_knows_where_it_begins(
        self, bench: Bench, capacity: int
    ):
        bench.capacity = capacity
        parts = []
        for unit, records in groupby(self.records(), key=lambda record: record[0]):
            ordinals = [ordinal for _, ordinal, _ in records]
            third = len(ordinals) // 3
            stop = [*ordinals, ordinals[-1] + 1][len(ordinals) - third]
            parts += [(unit, begin, stop) for begin in {0, ordinals[third]} if begin < stop]
        objects = self.objects()
        slices = [
            Unit(u, bench.key(u), len(objects[u]), record=begin, stop=stop)
            for u, begin, stop in parts
        ]
        expected = [r for u, a, b in parts for r in self.records() if r[0] == u and a <= r[1] < b]
        poured = bench.pour_slices(slices, objects)
        assert [r for shard in poured for r in shard.records] == expected
        assert bench.set_aside == {}

    @pytest.mark.parametrize(
        ("lanes", "capacity"),
        [(3, 20 << 10), pytest.param(16, CAPACITY, marks=pytest.mark.long)],
    )
    def test_stream_that_was_killed_goes_on_with_the_same_shards(
        self, bench: Bench, tmp_path: Path, lanes: int, capacity: int
    ):
        bench.lanes, bench.capacity = lanes, capacity
        shards = bench.stream(self.objects(), killed=lambda shard: False)
        assert sorted(r for s in shards for r in s.records) == sorted(self.records())
        assert len(shards) > 1
        for name, killed in (("each", lambda _: True), ("some", lambda shard: shard % 3 == 2)):
            (tmp_path / name).mkdir()
            again = Bench(self.open(), tmp_path / name, capacity, lanes=lanes, schema=bench.schema)
            again.suffix = self.suffix
            others = again.stream(self.objects(), killed)
            assert [s.file for s in others] == [s.file for s in shards]
            assert [s.sidecar for s in others] == [s.sidecar for s in shards]

    def test_stream_takes_no_byte_twice_while_its_lanes_are_open(
        self, bench: Bench, tmp_path: Path
    ):
        bench.lanes = 16
        assert len(bench.stream(self.objects(), killed=lambda shard: False)) > 1
        (tmp_path / "one").mkdir()
        whole = Bench(self.open(), tmp_path / "one", 1 << 30, lanes=16, suffix=self.suffix)
        assert len(whole.stream(self.objects(), killed=lambda shard: False)) == 1
        assert bench.taken == whole.taken

    def test_the_schema_is_found_once_and_fits_every_shard(self, bench: Bench):
        told: list[Schema] = []
        bench.described = lambda schema: told.append(schema) or setattr(bench, "schema", schema)  # type: ignore[method-assign]
        bench.pour(self.objects())
        assert told == [bench.schema]

    def test_a_unit_that_cannot_be_fetched_is_set_aside_and_no_other(self, bench: Bench):
        bench.gone = {1}
        shards = bench.pour(self.objects())
        assert bench.set_aside == {1: "gone"}
        assert [r for s in shards for r in s.records] == [r for r in self.records() if r[0] != 1]


class TwiceContract(FormatContract):
    """As the format `plain`, with a transform that makes two records of each."""

    plain: FormatContract

    @property
    def config(self):  # type: ignore[override]
        return {**self.plain.config, "transform": ["tests.sampler.steps:twice"]}

    def objects(self) -> list[bytes]:
        return self.plain.objects()

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, ordinal, record in self.plain.records():
            values = {name: value[0] for name, (_, value) in decode_example(record).items()}
            for variant in range(2):
                yield unit, 2 * ordinal + variant, encode_example({**values, "variant": variant})
