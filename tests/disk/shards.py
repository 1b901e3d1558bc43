"""Shards of a generation, made by the core's writer, for tests of the disk room."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cachecd.disk.layout import GenerationLayout
from cachecd.disk.publish import publish
from cachecd.model import Cursor, Lane, Shape
from cachecd_client import _core

SHAPE = Shape(streams=2, stripe=8, lanes=2, capacity=1 << 20, seed=0)


def directory(folder: Path) -> GenerationLayout:
    layout = GenerationLayout(folder / "datasets" / "train" / "0123456789abcdef")
    layout.shards.mkdir(parents=True)
    return layout


def cursor(number: int) -> Cursor:
    """The cursor before a stream's shard j, and so after its shard j - 1, for a number of that shard."""
    _, j = SHAPE.split(number)
    return Cursor(0, 0, 10 * j) if j else Cursor()


def payload(unit: int, record: int) -> bytes:
    """A sample of a tar; its name is the record's number."""
    text = f"record {record} of unit {unit} ".encode() * 20
    return _core.encode_example({"__key__": f"{record}", "text": text})


def write(
    layout: GenerationLayout,
    number: int,
    version: int = 0,
    units: Sequence[tuple[int, str]] | None = None,
    records: int = 3,
    lanes: tuple[Lane, ...] = (),
) -> None:
    """A sealed shard under its temporary name: `records` records of each unit in turn."""
    units = [(10 * number + n, f"key-{number}-{n}") for n in range(2)] if units is None else units
    writer = _core.ShardWriter(str(layout.temporary(number, version)), SHAPE.capacity)
    for unit, key in units:
        writer.describe(unit, key.encode("utf-8", "surrogatepass"), 0, b"etag")
    for record in range(records):
        for unit, _ in units:
            assert writer.append(payload(unit, record), unit, record)
    after = cursor(number + SHAPE.streams + 1)
    after = Cursor(after.pass_, after.block, after.place, lanes)
    meta = {"before": cursor(number).pack(), "after": after.pack(), "skipped": []}
    meta |= {"ended": len(units) - len(lanes), "passed": 0}
    writer.finish(json.dumps(meta))


def make(layout: GenerationLayout, *numbers: int, version: int = 0) -> None:
    """Published shards."""
    for number in numbers:
        write(layout, number, version)
        publish(layout, number, version)


def tree(layout: GenerationLayout) -> list[str]:
    return sorted(path.name for path in layout.shards.iterdir())


def contents(
    layout: GenerationLayout, number: int, version: int = 0
) -> list[tuple[int, int, bytes]]:
    """(unit, ordinal, payload) of each record."""
    sidecar = _core.Sidecar.read(str(layout.sidecar(number, version)))
    path = str(layout.shard(number, version))
    return [
        (unit, ordinal, _core.read_record(path, offset))
        for unit, ordinal, offset in zip(
            sidecar.units.tolist(), sidecar.ordinals.tolist(), sidecar.offsets.tolist(), strict=True
        )
    ]
