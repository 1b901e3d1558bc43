"""One assignment of several sources, of which some cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cachecd.model import Assignment, ShardId, UnitSlice
from cachecd.sampler.messages import Failed, Made, Make
from tests.sampler.test_worker import CAPACITY, Bench

UNITS = [UnitSlice(0, "1/a", 5), UnitSlice(1, "1/b", 5)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Of two sources, the second is away."""
    for name in ("tmp", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "there" / "a").write_bytes(b"12345")
    urls = [f"file://{tmp_path}/{name}" for name in ("there", "away")]
    sources = [{"url": url, "format": "files", "weight": 1.0} for url in urls]
    return Bench(tmp_path / "tmp", sources=sources)


def test_of_units_of_nothing_but_a_source_that_is_away_nothing_is_made_and_all_are_left(bench):
    made = bench.make(UNITS)
    assert isinstance(made, Made)
    assert (made.outcome.records, made.outcome.remainder) == (0, tuple(UNITS))
    assert [place for place, _ in made.outcome.unreachable] == [1]
    assert made.outcome.set_aside == ()
    assert list(bench.folder.iterdir()) == []


def test_if_all_are_away_the_shard_fails(bench, tmp_path):
    (tmp_path / "there").rename(tmp_path / "gone")
    assert isinstance(bench.make([UnitSlice(2, "0/a", 5), *UNITS]), Failed)


@pytest.mark.parametrize("waits", [False, True])
def test_a_shard_that_waits_for_all_of_them_fails_without_one(bench, waits):
    # Whatever the process was told when it began: a running daemon takes up another grow.wait.
    units = (UnitSlice(2, "0/a", 5), *UNITS)
    assignment = Assignment(ShardId("train", 1), "g", units)
    path = str(bench.folder / "1.tfrecord")
    make = Make(assignment, path, CAPACITY, None, (), {}, waits=waits)
    assert isinstance(asyncio.run(bench.worker.make(make)), Failed) == waits
