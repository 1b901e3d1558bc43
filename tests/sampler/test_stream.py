"""Streams in a worker: the same shards from any cursor under any kill, each byte fetched once."""

from __future__ import annotations

import asyncio
import io
import os
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.model import Cursor, Shape, Unit
from cachecd_client._core import Sidecar, encode_example
from tests.core.shards import frames
from tests.e2e.link import Link
from tests.sampler.streams import Player, listed
from tests.sampler.test_webdataset import archive
from tests.stores import S3Server

Bodies = list[bytes]


def _tfrecords(sizes: list[list[int]], chance: random.Random) -> Bodies:
    return [
        frames([encode_example({"x": chance.randbytes(size)}) for size in unit]) for unit in sizes
    ]


def _tars(sizes: list[list[int]], chance: random.Random) -> Bodies:
    return [
        archive([(f"{number:03d}.bin", chance.randbytes(size)) for number, size in enumerate(unit)])
        for unit in sizes
    ]


def _files(sizes: list[list[int]], chance: random.Random) -> Bodies:
    return [chance.randbytes(size) for unit in sizes for size in unit]


def _lines(sizes: list[list[int]], chance: random.Random) -> Bodies:
    return [b"".join(b"%x\n" % chance.getrandbits(8 * size + 8) for size in unit) for unit in sizes]


def _arrays(sizes: list[list[int]], chance: random.Random) -> Bodies:
    bodies = []
    for unit in sizes:
        file = io.BytesIO()
        np.save(file, np.frombuffer(chance.randbytes(sum(unit) + 4000), np.uint8))
        bodies.append(file.getvalue())
    return bodies


def _tables(sizes: list[list[int]], chance: random.Random) -> Bodies:
    bodies = []
    for unit in sizes:
        file = io.BytesIO()
        rows = [{"x": chance.randbytes(size), "n": number} for number, size in enumerate(unit)]
        pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=3)
        bodies.append(file.getvalue())
    return bodies


FORMATS: dict[str, tuple[Callable[[list[list[int]], random.Random], Bodies], dict[str, Any]]] = {
    "files": (_files, {}),
    "tfrecord": (_tfrecords, {}),
    "webdataset": (_tars, {}),
    "npy": (_arrays, {"array": {"window": 3000, "stride": 2500}}),
    "python": (_lines, {"reader": "tests.sampler.readers:Lines"}),
    "parquet": (_tables, {}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each test makes anew what it uses of it."""
    return tmp_path_factory.mktemp("stream")


def source(folder: Path, format: str, bodies: Bodies) -> dict[str, Any]:
    """A dataset of these objects in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, body in enumerate(bodies):
        (folder / f"{number:04d}").write_bytes(body)
    return {"source": {"url": f"file://{folder}", "format": format, **FORMATS[format][1]}}


def player(folder: Path, dataset: dict[str, Any], units: list[Unit], **more: Any) -> Player:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shape = more.pop("shape", Shape(1, 8, 4, 64 << 10, 0))
    return Player(folder, dataset, units, shape, **more)


def shards(of: Player) -> list[tuple[int, bytes, bytes]]:
    return [(made.number, made.data, made.sidecar) for made in of.made]


SIZES = st.lists(
    st.lists(st.integers(1, 200) | st.integers(2000, 20_000), min_size=1, max_size=30),
    min_size=3,
    max_size=7,
)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60 if "CACHECD_LONG" in os.environ else 3)
@given(data=st.data())
def test_stream_under_kills_makes_the_same_shards_to_the_byte(
    root: Path, format: str, data: st.DataObject
):
    """Whatever the units, the lanes, the faults and `until`, and wherever the worker is killed."""
    chance = random.Random(data.draw(st.integers(0, 99)))
    bodies = FORMATS[format][0](data.draw(SIZES), chance)
    shape = Shape(1, 8, data.draw(st.integers(1, 5)), data.draw(st.sampled_from([40, 64])) << 10, 0)
    dataset = source(root / "src", format, bodies)
    units = listed(dataset)
    (root / "src" / "sound").write_bytes(b"so that a missing object is not the store's fault")
    for number in data.draw(st.sets(st.integers(0, len(bodies) - 1), max_size=2)):
        damage(root / "src" / f"{number:04d}", chance)

    def play(name: str, **more: Any) -> Player:
        return player(root / name, dataset, units, shape=shape, page=3, **more)

    first = play("first")
    asyncio.run(first.play())
    plain = play("plain", schema=first.schema)  # why a unit is skipped may depend on it
    asyncio.run(plain.play())
    assert [made.data for made in plain.made] == [made.data for made in first.made]
    every = [plain.start, *(made.outcome.after for made in plain.made)]
    before = data.draw(st.sampled_from(every[:-1]))
    bounds = {"start": Cursor(1), "until": replace(before, pass_=1)}
    second = play("second", schema=plain.schema, **bounds)
    asyncio.run(second.play())
    expected = Counter(records(plain, upto=every.index(before)))
    assert Counter(records(second)) == expected, "the next pass has what was before `until`"

    for one, more in ((plain, {}), (second, bounds)):
        killed = play("killed", schema=plain.schema, **more)
        for steps in data.draw(st.lists(st.integers(1, 60), max_size=5)):
            asyncio.run(killed.play(steps))
            if killed.done:
                break
            killed.leave_traces()
        if not killed.done:
            asyncio.run(killed.play())
        assert shards(killed) == shards(one)
        assert [m.outcome.after for m in killed.made] == [m.outcome.after for m in one.made]


def damage(path: Path, chance: random.Random) -> None:
    """Removes an object, or alters a byte in it."""
    body = bytearray(path.read_bytes())
    if chance.random() < 0.5 or not body:
        path.unlink()
        return
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(body)
    os.utime(path, ns=times)


def records(of: Player, upto: int | None = None) -> Iterator[tuple[int, int]]:
    """(unit, ordinal) of the records of the first shards."""
    for made in of.made[:upto]:
        path = of.folder / f"{made.number}.tfrecord"
        if made.outcome.before == made.outcome.after:
            assert not Path(f"{path}.idx").exists(), "nothing was done: there is no file"
            continue
        sidecar = Sidecar.read(f"{path}.idx")
        assert path.exists() == bool(len(sidecar)), "without a record there is a sidecar alone"
        assert sidecar.digest == made.outcome.digest
        yield from zip(sidecar.units.tolist(), sidecar.ordinals.tolist(), strict=True)


# --- bytes from a real server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return s3.bucket(f"stream-{uuid.uuid4().hex}")


def test_pass_over_tars_larger_than_a_shard_fetches_each_byte_once(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """4 tars of 7 MB in shards of 1 MiB: at most 1 % more than the source, counted on the way."""
    chance = random.Random(1)
    bodies = _tars([[100_000] * 70 for _ in range(4)], chance)
    s3.put(bucket, {f"{number:04d}.tar": body for number, body in enumerate(bodies)})
    dataset = {"source": {"url": f"s3://{bucket}", "format": "webdataset"}}
    units = listed(dataset)
    with Link(s3.endpoint) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", link.endpoint)
        of = player(tmp_path / "out", dataset, units, shape=Shape(1, 8, 4, 1 << 20, 0))
        asyncio.run(of.play())
        served = link.answered_bytes
    assert sorted(records(of)) == [(unit, n) for unit in range(4) for n in range(70)]
    assert len(of.made) >= 28
    assert served <= 1.01 * sum(map(len, bodies))
    sizes = [len(made.data) + len(made.sidecar) for made in of.made[:-1]]
    assert min(sizes) > (1 << 20) - 110_000, "each shard but the last is full to the last record"
