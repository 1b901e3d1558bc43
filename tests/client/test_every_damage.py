"""Every byte and every length of a shard and of its sidecar, damaged, as an epoch and a FileSet read them.

What is delivered is what was written, or it is not delivered; and it is said that something was wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.sampler.encoding import encode
from cachecd_client import Schema, _core
from cachecd_client.errors import CorruptRecordError
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.protocol import ReportCorrupt
from cachecd_client.runs.epoch import Epoch
from cachecd_client.schema import Feature
from tests.client.conftest import GENERATION
from tests.client.records import write
from tests.core.shards import LONG

N = 5
SCHEMA = Schema((Feature("key", "bytes", "bytes", ()), Feature("label", "int64", "int64", ())))

Rows = dict[int, bytes]  # label -> key


class Reports:
    endpoint = "ipc:///nobody"

    def __init__(self) -> None:
        self.made: list[ReportCorrupt] = []

    def ask(self, report: ReportCorrupt, timeout: float) -> None:
        self.made.append(report)


@pytest.fixture
def shard(cache_dir: Any) -> Path:
    records = [encode(SCHEMA, {"label": n, "key": f"key {n}".encode() * (n % 3)}) for n in range(N)]
    path: Path = cache_dir.root / f"datasets/train/{GENERATION}/shards/0000000000.tfrecord"
    return write(path, records, SCHEMA)


@pytest.fixture
def leased(cache_dir: Any, shard: Path) -> Iterator[Epoch]:
    manifest = cache_dir.manifest(shards=1, num_records=N, schema=SCHEMA.to_json())
    reports: Any = Reports()
    with Epoch(LeasedSet(HeldLease(manifest), reports, HeldLease.close, number=0)) as found:
        yield found


GOOD: Rows = {n: f"key {n}".encode() * (n % 3) for n in range(N)}


def rows(loader: Any) -> Rows:
    """What a pass delivers, which must all have been written."""
    found: Rows = {}
    for batch in loader:
        for label, key in zip(batch["label"].tolist(), batch["key"], strict=True):
            assert GOOD.get(label) == bytes(key), "something that nobody wrote was delivered"
            found[label] = bytes(key)
    return found


def damages(path: Path) -> Iterator[tuple[str, int]]:
    """Damages the file in every way, one after the other, and tells which; mends it at the end.

    At every third byte alone in the short form: the core's tests damage each.
    """
    good = path.read_bytes()
    step = 1 if LONG else 3
    try:
        for at in range(0, len(good), step):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
            yield "flipped", at
        for length in range(0, len(good), step):
            path.write_bytes(good[:length])
            yield "cut", length
    finally:
        path.write_bytes(good)


def test_whatever_is_damaged_of_a_leased_shard_is_not_delivered_and_is_reported(leased, shard):
    offsets = _core.scan(str(shard)).tolist()
    for kind, at in damages(shard):
        leased._sets[0]._reported.clear()
        leased._sets[0].transport.made.clear()
        hit = max(n for n, offset in enumerate(offsets) if offset <= at)
        try:
            found = rows(leased.numpy(batch_size=N))
        except CorruptRecordError:
            assert (kind, hit) == ("cut", 0), "only if no record is left"
            found = {}
        lost = {hit} if kind == "flipped" else set(range(hit, N))
        assert found == {n: key for n, key in GOOD.items() if n not in lost}, (kind, at)
        reported = {(report.shard, report.offset) for report in leased._sets[0].transport.made}
        assert reported, (kind, at)
        if found:
            assert len(reported) == 1, "the first of its shard"


@pytest.mark.parametrize(
    ("becomes", "window"), [("nothing", 1), ("a loop", 1), ("unindexed", None)]
)
def test_a_leased_shard_that_vanishes_costs_its_records_and_is_reported(
    cache_dir, shard, becomes, window
):
    """A second shard is as before; where each record was is known from the lease."""
    other = shard.with_name("0000000001.tfrecord")
    write(other, [encode(SCHEMA, {"label": n, "key": GOOD[n]}) for n in range(N)], SCHEMA)
    size = shard.stat().st_size + other.stat().st_size
    manifest = cache_dir.manifest(
        shards=2, num_records=2 * N, num_bytes=size, schema=SCHEMA.to_json(), window=window
    )
    reports: Any = Reports()
    with Epoch(LeasedSet(HeldLease(manifest), reports, HeldLease.close, number=0)) as leased:
        options = {"ids": True, "drop_last": False, "seed": 5}
        expected = [int(label) for batch in leased.numpy(4, **options) for label in batch["label"]]
        strict = leased.numpy(4, on_corrupt="raise")
        loader = leased.numpy(4, **options)
        shard.unlink()
        if becomes == "a loop":
            shard.symlink_to(shard)
        elif becomes == "unindexed":
            shard.with_name(shard.name + ".idx").unlink()
        batches = list(loader)
        assert [place for batch in batches for place in batch["_shard"]] == [1] * 2 * N
        found = [int(label) for batch in batches for label in batch["label"]]
        assert sum(a == b for a, b in zip(found, expected, strict=True)) >= N, "no other moved"
        assert {report.shard for report in reports.made} == {0}
        with pytest.raises(CorruptRecordError, match="cannot be opened"):
            list(strict)


def test_whatever_is_damaged_of_a_leased_shards_sidecar_costs_no_record(leased, shard):
    sidecar = shard.with_name(shard.name + ".idx")
    end = sidecar.stat().st_size - 2 * (4 * N + 4)  # of the offsets
    for kind, at in damages(sidecar):
        leased._sets[0]._reported.clear()
        leased._sets[0].transport.made.clear()
        assert rows(leased.numpy(batch_size=N)) == GOOD
        # What says where the records are is all that a trainer needs of it. The rest is the daemon's.
        needed = at < 52 or end - 8 * N - 4 <= at < end
        if kind == "cut" or needed:
            assert [(r.shard, r.offset) for r in leased._sets[0].transport.made] == [(0, 0)], (
                kind,
                at,
            )
