"""A lost catalog is rebuilt from the sidecars: in bounded memory, and on from where it was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd import reconcile
from cachecd.catalog import Catalog
from cachecd.layout import Layout
from cachecd.ledger import Ledger, footprint
from cachecd.model import ShardId
from cachecd.recovery import recover
from cachecd.rules import DatasetRules
from cachecd.state import State
from cachecd_client._core import ShardWriter, Sidecar
from tests.e2e.daemons import clean_environ
from tests.test_recovery import SCHEMA, SHARD_SIZE, Cache
from tests.units import Units

SHARDS = 130
OBJECTS = 3 * SHARDS
KILLED = """
import os, signal, sys
from pathlib import Path
from cachecd import reconcile
from tests.faults.test_killed_rebuild import OBJECTS
from tests.test_recovery import Cache

class Killed:
    left = int(sys.argv[2])

    @classmethod
    def read(cls, path):
        cls.left -= 1
        if cls.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real.read(path)

real, reconcile.Sidecar = reconcile.Sidecar, Killed
Cache(Path(sys.argv[1]), OBJECTS)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    (tmp_path / "cache").mkdir()
    cache = Cache(tmp_path / "cache", OBJECTS)
    yield cache
    cache.stop()


def fill(cache: Cache, shards: int = SHARDS) -> None:
    """Shards of three units each; of some the last did not fit whole, and of some of those its rest is in
    the next one. The third is of another generation, the fourth of another listing."""
    for number in range(1, shards + 1):
        units = range(3 * (number - 1), 3 * number)
        records = [(unit, ordinal) for unit in units for ordinal in range(2)]
        rest = [[units[-1], 2, 100]] if number % 5 == 0 else []
        if number % 10 == 1 and number > 1:
            records += [(units[0] - 1, 2)]
        writer = ShardWriter(str(cache.layout.shard(ShardId("train", number))), SHARD_SIZE)
        for unit, ordinal in sorted(records):
            assert writer.append(b"record", unit, ordinal)
        meta = {"dataset": "train", "number": number, "generation": "0-z" if number == 3 else "1-a",
                "index": "f" * 16 if number == 4 else cache.index.id, "cursor": units[-1] + 1,
                "schema": SCHEMA, "remainder": rest}  # fmt: skip
        writer.finish(json.dumps(meta))


def lose_catalog(cache: Cache) -> None:
    for path in cache.layout.root.glob("catalog.sqlite*"):
        path.unlink()


def told(cache: Cache) -> dict[str, Any]:
    """All that a start takes up of the sidecars."""
    state, plan = cache.found.state, cache.plan
    units = list(range(OBJECTS))
    live = [(live.shard, live.retired, live.barred) for live in (state.live[n] for n in state.live)]
    return {
        "plan": plan.to_json(),
        "held": plan.partly_held(units),
        "twice": plan.held_twice(units),
        "left": plan.left_over,
        "live": live,
        "listings": state.listings,
        "schemas": cache.found.schemas,
        "rows": {n: cache.catalog.held(ShardId("train", n))[1] for n in state.live},
    }


class Reads:
    """In place of the sidecar's reader: counts, and fails after some."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.paths: list[str] = []
        self.most = most

    def read(self, path: str) -> Sidecar:
        if len(self.paths) >= self.most:
            raise MemoryError("killed")
        self.paths.append(path)
        return Sidecar.read(path)


Counted = Callable[..., Reads]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    def reads(*most: int) -> Reads:
        found = Reads(*most)
        monkeypatch.setattr(reconcile, "Sidecar", found)
        return found

    return reads


def lose_midway(cache: Cache, counted: Counted, most: int) -> None:
    """A rebuild, five at a time, that ends after so many sidecars."""
    cache.stop()
    lose_catalog(cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconcile, "_ADOPTED_AT_ONCE", 5)
        counted(most)
        with pytest.raises(MemoryError):
            cache.start()
    cache.stop()


def test_a_rebuild_that_ends_before_it_is_done_is_gone_on_with_where_it_was(cache, counted):
    fill(cache, 40)
    cache.stop()
    lose_catalog(cache)
    all_of_them = counted()
    cache.start()
    assert len(all_of_them.paths) == 40
    undisturbed = told(cache)
    assert undisturbed["left"], "nothing was cut"
    for most in (0, 1, 7, 25):
        lose_midway(cache, counted, most)
        rest = counted()
        cache.start()
        assert len(rest.paths) == 40 - most // 5 * 5
        assert told(cache) == undisturbed
        nothing = counted()
        cache.restart()
        assert nothing.paths == []
        assert told(cache) == undisturbed
        assert cache.catalog.adopted("train") == {}


def test_a_process_that_is_killed_while_it_rebuilds_leaves_what_it_has_read(cache, counted):
    fill(cache)
    cache.stop()
    lose_catalog(cache)
    cache.start()
    undisturbed = told(cache)
    cache.stop()
    lose_catalog(cache)
    arguments = [sys.executable, "-c", KILLED, str(cache.layout.root), "120"]
    ended = subprocess.run(arguments, env=clean_environ(), timeout=60)
    assert ended.returncode == -signal.SIGKILL
    rest = counted()
    cache.start()
    assert len(rest.paths) == SHARDS - 100
    assert told(cache) == undisturbed


@pytest.mark.parametrize("file", ["shard", "sidecar", "both"])
def test_a_shard_that_changes_after_a_rebuild_was_killed_is_judged_by_its_files(
    cache, counted, file
):
    fill(cache, 20)
    lose_midway(cache, counted, 10)
    path = cache.layout.shard(ShardId("train", 2))
    for touched in {"shard": [path], "sidecar": [cache.layout.sidecar(path)]}.get(
        file, [path, cache.layout.sidecar(path)]
    ):
        if file == "both":
            touched.unlink()
        else:
            touched.write_bytes(touched.read_bytes()[:10])
    counted()
    cache.start()
    assert 2 not in cache.numbers()
    assert not path.exists()
    assert not cache.plan.partly_held([3, 4, 5])


def peak(folder: Path, shards: int, units: int) -> int:
    """Bytes that a rebuild of so many shards takes at most."""
    folder.mkdir()
    layout, index = Layout(folder), Units([1000] * shards * units)
    for directory in (layout.shards, layout.leases, layout.shards / "train"):
        directory.mkdir()
    for number in range(1, shards + 1):
        writer = ShardWriter(str(layout.shard(ShardId("train", number))), 1 << 20)
        for unit in range((number - 1) * units, number * units):
            assert writer.append(b"", unit, 0)
        meta = {"dataset": "train", "number": number, "generation": "1-a", "index": index.id,
                "cursor": number * units, "remainder": [], "schema": SCHEMA}  # fmt: skip
        writer.finish(json.dumps(meta))
    catalog = Catalog(layout.catalog)
    state = State(Ledger(1 << 40, footprint(SHARD_SIZE)), SHARD_SIZE, 2, "b")
    tracemalloc.start()
    rules = DatasetRules("train", "1-a", first=SHARD_SIZE)
    plan = recover(layout, catalog, index, rules, SHARD_SIZE, state).state.plan
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not plan.num_waiting
    catalog.close()
    return most


def test_a_rebuild_takes_memory_by_the_shard_and_not_by_what_the_shards_hold(tmp_path):
    peak(tmp_path / "first", 2, 2)  # what a process takes once
    base, more = peak(tmp_path / "a", 40, 2), peak(tmp_path / "b", 400, 2)
    large = peak(tmp_path / "c", 40, 2500)
    assert more - base < 360 * 4000
    assert large - base < 5_000_000
