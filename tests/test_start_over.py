"""A walk that begins anew, or goes on by what sidecars say: what is known of it is saved, and used once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cachecd import recovery
from cachecd.database import Database
from cachecd.model import EXCLUDED, Assignment, SetAside, Shard, ShardId
from cachecd.parts import parts_written
from cachecd.reconcile import Kept
from cachecd.recovery import saved_plan
from cachecd.rules import DatasetRules
from cachecd.sidecarwalk import begun_in, cut_units
from cachecd_client._core import ShardWriter
from tests.test_recovery import SCHEMA, SHARD_SIZE, Cache
from tests.units import Units
from tests.world import UNIT, granted, world


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path)
    yield cache
    cache.stop()


def test_a_walk_that_began_anew_is_gone_on_with_though_nothing_was_begun_in_it():
    w = world(shards=20, units=20)
    w.settle()
    before = w.state.datasets["train"]
    assert before.egress > 0
    w.rules["train"] = dataclasses.replace(w.rules["train"], generation="2-b")
    w.spare = 0  # there is no room to begin anything
    for _ in range(3):
        w.restart()
        after = w.state.datasets["train"]
        assert not w.making
        assert (after.egress, after.plan.next_number) == (before.egress, before.plan.next_number)
        assert all(len(w.rows.held(shard)[0]) for shard in w.disk), "what older shards hold"


def test_the_catalog_has_the_walk_that_began_anew_and_what_was_in_its_shards(cache):
    held = sorted(u.unit for u in cache.make().units)
    begun = cache.assign()
    cache.rules = DatasetRules("train", "2-b", first=SHARD_SIZE)
    for _ in range(2):
        cache.restart()
        assert cache.plan.next_number == begun.shard.number + 1
        assert cache.catalog.plan("train")["generation"] == "2-b"
        assert cache.catalog.assignments("train") == []
        assert cache.catalog.held(ShardId("train", 1))[0].tolist() == held


def fail(cache: Cache, *units: int) -> list[tuple[int, str]]:
    """Sets units aside, under keys that say of which configuration; returns what is set aside then."""
    generation = cache.rules.generation
    bad = [SetAside(unit, f"{generation} key-{unit}", "bad") for unit in units]
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), set_aside=bad)
    return asides(cache)


def asides(cache: Cache) -> list[tuple[int, str]]:
    return [(aside.unit, aside.key) for aside in cache.catalog.set_aside("train")]


def configure(cache: Cache, number: int, source: str = "s") -> None:
    cache.rules = dataclasses.replace(cache.rules, generation=f"{number}-x")
    cache.restart(source)


@pytest.mark.parametrize("fetched", [False, True])
def test_after_two_mistakes_one_after_the_other_the_walk_goes_on_where_it_was_left(cache, fetched):
    configure(cache, 1)
    cache.make()
    cache.assign()
    before = fail(cache, 11)
    position = cache.plan.walk.cycle.position
    for mistake in (2, 3):
        configure(cache, mistake)
        assert asides(cache) == []
        if fetched:
            cache.make()
    configure(cache, 1)
    assert cache.plan.walk.cycle.position == position
    assert asides(cache) == before
    assert 11 not in cache.rest()


def test_of_walks_that_were_left_only_the_latest_stay(cache):
    for number in (1, 2, 3, 4, 2, 5):
        configure(cache, number)
        fail(cache, number)
    plans = cache.catalog.parked("train").values()
    assert sorted(plan["generation"] for plan in plans) == ["2-x", "4-x"]
    rows = cache.catalog._db.execute("SELECT unit FROM set_aside ORDER BY unit")
    assert [unit for (unit,) in rows] == [2, 4, 5]


class Killed(BaseException):
    """The process ends at once."""


def test_no_number_is_given_again_where_starts_are_killed_as_soon_as_another_walk_is_turned_to(
    cache, monkeypatch
):
    for number in (1, 2, 3):
        configure(cache, number)
    for _ in range(3):
        cache.assign()
    for number in (2, 1, 4, 5):
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "find_shards", killed)
            with pytest.raises(Killed):
                configure(cache, number)
    configure(cache, 6)
    assert cache.assign().shard.number == 4


def killed(*_: object) -> None:
    raise Killed


def killed_at(monkeypatch: pytest.MonkeyPatch, statement: int) -> None:
    """The daemon is killed before it has written that often."""
    left = statement

    def counted(write: Callable[..., object]) -> Callable[..., object]:
        def counting(self: Database, sql: str, values: Sequence[object] = ()) -> object:
            nonlocal left
            if not sql.startswith("SELECT"):
                left -= 1
                if left < 0:
                    raise Killed
            return write(self, sql, values)

        return counting

    for name in ("execute", "executemany"):
        monkeypatch.setattr(Database, name, counted(getattr(Database, name)))


@pytest.mark.parametrize("source", ["s", "another"])
def test_a_kill_while_another_walk_is_turned_to_leaves_each_walk_what_it_set_aside(
    tmp_path, monkeypatch, source
):
    for statement in range(1000):
        root = tmp_path / str(statement)
        root.mkdir()
        cache = Cache(root)
        configure(cache, 1)
        cache.make()
        mine = fail(cache, 11)
        configure(cache, 2, source)
        other = fail(cache, 5, 6, 7)
        configure(cache, 1)
        cache.stop()
        cache.rules = dataclasses.replace(cache.rules, generation="2-x")
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            killed_at(patch, statement)
            cache.start(source)
            patch.undo()
            break
        cache.stop()
        # The configuration is mended, or the mistake is made again.
        cache.rules = dataclasses.replace(cache.rules, generation=f"{1 + statement % 2}-x")
        cache.start(source if statement % 2 else "s")
        assert asides(cache) == (other if statement % 2 else mine)
        configure(cache, 1)
        assert asides(cache) == mine
        assert cache.plan.num_aside == len(mine)
        configure(cache, 2, source)
        assert asides(cache) == other
        cache.stop()
    assert statement > 4
    cache.stop()


def exclude(cache: Cache, unit: int) -> None:
    """The daemon is killed before it has barred the shards that hold it."""
    cache.catalog.save_progress(
        saved_plan(cache.found.state, cache.index),
        set_aside=[SetAside(unit, f"key-{unit}", EXCLUDED), SetAside(11, "key-11", "404")],
        excluded=[(f"key-{unit}", 0)],
    )


def test_a_new_generation_knows_at_once_what_was_excluded_and_tries_again_what_failed(cache):
    unit = cache.make().units[0].unit
    exclude(cache, unit)
    cache.rules = DatasetRules("train", "2-b", first=SHARD_SIZE)
    for _ in range(2):
        cache.restart()
        assert cache.found.state.excluded.numbers == {unit}
        assert [aside.unit for aside in cache.catalog.set_aside("train")] == [unit]
    assert unit not in cache.rest()


def test_a_listing_that_began_afresh_bars_what_holds_an_excluded_unit_before_that_is_forgotten(
    cache,
):
    first, second = cache.make(), cache.make()
    exclude(cache, first.units[0].unit)
    cache.restart(source="another")
    live = cache.found.state.live
    assert not live[first.shard.number].served
    assert live[second.shard.number].served


def test_a_rest_that_two_shards_say_did_not_fit_is_fetched_once_without_a_catalog(cache):
    """It was assigned to both, one after the other."""
    one, other = (u.unit for u in cache.assign().units[:2])
    for number, unit, records in ((1, one, 3), (2, other, 1)):
        writer = ShardWriter(str(cache.layout.shard(ShardId("train", number))), SHARD_SIZE)
        for ordinal in range(records):
            assert writer.append(b"record", unit, ordinal)
        meta = {"dataset": "train", "number": number, "generation": "1-a", "index": cache.index.id,
                "cursor": 2, "schema": SCHEMA, "remainder": [[one, 3, 900]]}  # fmt: skip
        writer.finish(json.dumps(meta))
    cache.stop()
    cache.layout.catalog.unlink()
    cache.start()
    parts = []
    while isinstance(found := cache.plan.assign(), Assignment):
        parts += [(u.ordinal, u.offset) for u in found.units if u.unit == one]
    assert parts == [(3, 900)]


def kept(number: int, held: dict[int, int], *remainder: list[int]) -> Kept:
    """A shard of these units, with the first ordinal of each."""
    units, firsts = np.array([*held], np.uint64), np.array([*held.values()], np.uint32)
    shard = Shard(ShardId("train", number), "1-a", 1, 1, 1)
    parts = parts_written(units, firsts, remainder, {})
    walk = {"index": "i", "remainder": [*remainder], "most": max(held)}
    return Kept(shard, False, False, walk, parts)


def test_a_part_that_is_missing_between_two_shards_ends_where_the_later_one_begins():
    shards = [kept(3, {5: 0}, [5, 2, 100]), kept(9, {5: 7, 6: 0}, [5, 9, 900], [6, 0, 0])]
    found = cut_units(shards, Units([1000] * 9), begun_in(shards))
    assert [(u.unit, u.ordinal, u.stop) for u in found] == [(5, 2, 7), (5, 9, 0)]


def test_a_shard_whose_removal_was_killed_counts_as_gone_for_every_later_set_and_rotation():
    w = world(shards=8, first=SHARD_SIZE, per_epoch=3 * UNIT, wait=True)
    w.settle()
    lease = ""
    for epoch in range(40):
        following = granted(w.acquire("train", "job", epoch))
        if lease:
            w.drop(lease)
        lease = following
        if w.unlinking:
            break
        w.settle()
    before, shard = w.state.datasets["train"], w.unlinking[0]
    size = before.live[shard.number].shard
    told = before.evicted, before.evicted_shards, before.debt
    w.rows.refuses = True  # killed before the catalog has heard of it
    w.unlink(shard)
    for _ in range(2):
        w.restart()
        after = w.state.datasets["train"]
        found = after.evicted, after.evicted_shards, after.debt
        assert found == (told[0] + size.data_bytes, told[1] + 1, told[2] + size.allocated)


def test_of_shards_without_files_those_are_gone_that_were_to_go_and_the_others_are_lost(cache):
    shards = [cache.make().shard for _ in range(3)]
    sizes = {s.number: cache.layout.shard(s).stat().st_size for s in shards}
    cache.catalog.retire("train", [1])
    for shard in shards[:2]:
        cache.layout.shard(shard).unlink()
    for _ in range(2):
        cache.restart()
        state = cache.found.state
        assert cache.numbers() == [3]
        assert (state.evicted, state.evicted_shards, state.debt) == (sizes[1], 1, 8192)


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)


def of_another_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
        db.commit()


def half_made(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE plans (dataset TEXT PRIMARY KEY)")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (no_database, "file is not a database"),
        (of_another_version, "version 99, expected 6"),
        (half_made, "version 0, expected 6"),
    ],
)
def test_an_unusable_catalog_is_removed_and_the_shards_stay(cache, damage, why):
    cache.make()
    cache.stop()
    damage(cache.layout.catalog)
    cache.start()
    assert (cache.catalog.rebuilt, why in cache.catalog.removed) == (True, True)
    assert cache.found.state.live.get(1).served
    cache.restart()
    assert (cache.catalog.rebuilt, cache.catalog.removed) == (False, "")
