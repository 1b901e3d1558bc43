"""Units of JSON lines: ranges of plain objects, and whole compressed objects."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cachecd.cli.sampler import Sampler
from cachecd.config import SourceConfig, load
from cachecd.errors import RecordError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats.jsonl import lines
from cachecd.sampler.formats.jsonl.lines import LineSplitter
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import decode_example
from tests import zstandard
from tests.contracts.format import Bench
from tests.sampler.test_jsonl import bench_of, json_lines
from tests.stores import S3Server


def poured(bench: Bench, body: bytes, ranges: list[tuple[int, int]], key: str = "k") -> list[int]:
    """The values of `n` of an object that is cut into these ranges."""
    units = [Unit(nth, key, size, begin=begin) for nth, (begin, size) in enumerate(ranges)]
    shards = bench.pour_slices(units, [body] * len(units))
    return [decode_example(r)["n"][1][0] for shard in shards for _, _, r in shard.records]


def cuts(size: int, places: list[int]) -> list[tuple[int, int]]:
    at = sorted({0, size, *places})
    return [(a, b - a) for a, b in pairwise(at)]


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
@pytest.mark.parametrize("end", [b"\n", b""], ids=["ended", "not ended"])
def test_every_line_is_in_one_range_wherever_the_ranges_are_cut(
    cut: int, end: bytes, tmp_path: Path
):
    chance = random.Random(4)
    rows = [{"n": n, "pad": "x" * chance.choice([0, 3, 30])} for n in range(8)]
    body = json_lines(rows).removesuffix(b"\n") + end
    bench = bench_of(tmp_path)
    bench.cut = cut
    for at in range(1, len(body)):
        assert poured(bench, body, cuts(len(body), [at])) == list(range(8))
    for _ in range(20):
        places = [chance.randrange(1, len(body)) for _ in range(chance.randrange(1, 30))]
        assert poured(bench, body, cuts(len(body), places)) == list(range(8))
    assert bench.set_aside == {}
    assert bench.passed == []


def test_a_range_within_a_long_line_has_no_record_and_is_no_error(tmp_path: Path):
    body = json_lines([{"n": 1, "pad": "x" * 1000}, {"n": 2, "pad": ""}])
    for transform in ((), "tests.sampler.steps:twice"):
        bench = bench_of(tmp_path / (transform or "plain"), transform=transform)
        assert poured(bench, body, cuts(len(body), [300, 600]))[:: 2 if transform else 1] == [1, 2]
        assert bench.set_aside == {}


def test_an_object_without_a_line_is_skipped(tmp_path: Path):
    bench = bench_of(tmp_path)
    assert bench.pour([gzip.compress(b"")], ["a.jsonl.gz"]) == []
    assert bench.set_aside == {0: "it has no records"}


def test_only_a_range_whose_last_line_goes_on_reads_beyond_its_end(tmp_path: Path):
    body = json_lines([{"n": n} for n in range(100)])
    at = body.index(b'{"n": 50}')
    for places, extra in ([at], 1), ([at + 4], 1 + len(body) - (at + 4)):
        bench = bench_of(tmp_path / str(places[0]))
        assert poured(bench, body, cuts(len(body), places)) == list(range(100))
        assert bench.taken == len(body) + extra  # the byte before the range, and one tail request


def test_a_rest_of_a_range_is_read_from_the_line_that_did_not_fit(tmp_path: Path):
    body = json_lines([{"n": n, "pad": "x" * 2000} for n in range(200)])
    bench = bench_of(tmp_path)
    bench.capacity = 64 << 10
    assert poured(bench, body, cuts(len(body), [len(body) // 2])) == list(range(200))
    shards = -(-200 * 2100 // bench.capacity)
    assert bench.taken < len(body) + (2 << 20)
    assert shards < 10


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_above_the_limit_costs_itself_and_is_never_held_whole(
    name: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(lines, "LONGEST", 1 << 16)
    long = b'{"n":2,"pad":"' + b"x" * (32 << 20) + b'"}\n'
    body = b'{"n":1}\n' + long + b'{"n":3}\n' + long.removesuffix(b"\n")
    splitter, found = LineSplitter(0, float("inf")), []
    tracemalloc.start()
    try:
        for at in range(0, len(body), 1 << 16):
            found += splitter.feed(body[at : at + (1 << 16)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert [offset for offset, _ in found] == [0, 8, 8 + len(long)]
    assert isinstance(found[1][1], RecordError)
    bench = bench_of(tmp_path)
    packed = gzip.compress(body, 1) if name.endswith("gz") else body
    [shard] = bench.pour([packed], [name])
    assert [ordinal for _, ordinal, _ in shard.records] == [0, 2]
    assert bench.passed == [f"{name}: record 1", f"{name}: record 3"]
    assert set(bench.reasons) == {"the line is longer than 65536 bytes"}


def test_a_line_in_many_pieces_is_joined_once():
    piece = b"x" * (1 << 10)
    splitter = LineSplitter(0, float("inf"))
    for _ in range(8192):
        assert list(splitter.feed(piece)) == []
    assert splitter._pieces == [piece] * 8192
    assert list(splitter.feed(b"\n")) == [(0, piece * 8192)]


def test_a_compressed_object_under_a_plain_name_is_refused_with_the_name_to_give(tmp_path: Path):
    bench = bench_of(tmp_path)
    good = json_lines([{"n": 1}])
    bench.pour([gzip.compress(good), good], ["a.jsonl", "b.jsonl"])
    assert bench.set_aside == {
        0: "it is compressed, but its name does not show this, so it would be read in parts: add .gz "
        "or .zst to the name"
    }


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("zst", zstandard.compress)], ids=["GZIP", "ZSTD"]
)
def test_a_cut_compressed_object_keeps_the_lines_before_the_cut(suffix, pack, tmp_path: Path):
    rows = [{"n": n, "pad": random.Random(n).randbytes(100).hex()} for n in range(6000)]
    body = pack(json_lines(rows))
    bench = bench_of(tmp_path)
    [shard] = bench.pour([body[: len(body) * 2 // 3]], [f"a.{suffix}"])
    assert 1000 < len(shard.records) < 5000
    assert "stream is incomplete" in bench.set_aside[0]


def test_ranges_of_objects_on_a_real_server_are_read_whole(
    s3: S3Server, tmp_path: Path, monkeypatch
):
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lines, "RANGE", 64 << 10)
    rows = [{"n": n, "pad": "x" * (200_000 if n == 40 else 3000)} for n in range(100)]
    bucket = s3.bucket("json-lines")
    plain = json_lines(rows[:80]).removesuffix(b"\n")
    s3.put(bucket, {"a.jsonl": plain, "b.jsonl.gz": gzip.compress(json_lines(rows[80:]))})
    path = tmp_path / "c.yaml"
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 1GiB}}\n"
        f"datasets: {{train: {{source: {{url: 's3://{bucket}/', format: jsonl}}}}}}\n"
    )
    sampler = Sampler(load(path), "train")
    units = sampler.first(100)
    assert len(units) == -(-len(plain) // (64 << 10)) + 1
    sample = sampler.take(units, 200)
    assert sorted(int(record.values["n"]) for record in sample.records) == list(range(100))
    assert sample.errors == []
    assert sample.read == len(units)


# --- listing


def listed(folder: Path, **source: Any) -> list[ObjectInfo]:
    config = SourceConfig.model_validate(
        {"url": f"file://{folder}/data/", "format": "jsonl", **source}
    )
    return [unit for page in list_units(config, open_unit_store(config, 2)) for unit in page]


@pytest.fixture
def put(tmp_path: Path):
    (tmp_path / "data").mkdir()

    def put(name: str, size: int) -> None:
        with (tmp_path / "data" / name).open("wb") as file:
            file.truncate(size)

    return put


MIB = 1 << 20


def test_plain_objects_are_listed_in_ranges_and_compressed_objects_whole(put, tmp_path: Path):
    sizes = {"a.jsonl": 150 * MIB, "b.json.gz": 150 * MIB, "c.txt": 64 * MIB, "d.ZST": 70 * MIB}
    for name, size in sizes.items():
        put(name, size)
    assert [(u.key, u.begin // MIB, u.size // MIB) for u in listed(tmp_path)] == [
        ("a.jsonl", 0, 64),
        ("a.jsonl", 64, 64),
        ("a.jsonl", 128, 22),
        ("b.json.gz", 0, 150),
        ("c.txt", 0, 64),
        ("d.ZST", 0, 70),
    ]


def test_rows_of_a_manifest_are_cut_like_objects(put, tmp_path: Path):
    put("a.jsonl", 100 * MIB)
    table = tmp_path / "t.csv"
    table.write_text(f"key,offset,length\na.jsonl,{30 * MIB},{70 * MIB}\na.jsonl,10,20\n")
    units = listed(tmp_path, manifest=f"file://{table}")
    assert [(u.begin, u.size) for u in units] == [
        (30 * MIB, 64 * MIB),
        (94 * MIB, 6 * MIB),
        (10, 20),
    ]


def test_a_part_of_a_compressed_object_is_refused(tmp_path: Path):
    source = bench_of(tmp_path).source
    assert "a part of a compressed object" in (
        source.refusal(Unit(0, "a.gz", 9, begin=5), 1 << 20) or ""
    )
    assert source.refusal(Unit(0, "a.gz", 9), 1 << 20) is None
