"""What a start finds on disk: the shards are the truth, the catalog a cache of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest

from cachecd import reconcile
from cachecd.catalog import Adopted, Catalog
from cachecd.errors import DiskError
from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.ledger import Ledger, footprint
from cachecd.model import Assignment, ObjectInfo, Outcome, SetAside, Shard, ShardId
from cachecd.reconcile import remove_temporaries
from cachecd.recovery import Recovered, recover, saved_plan
from cachecd.rules import DatasetRules
from cachecd.state import State
from cachecd_client._core import ShardWriter

SHARD_SIZE = 64 << 10
UNIT = 20_000  # three to a shard
SCHEMA = {"version": 1, "features": []}


class Cache:
    """A cache directory that can be filled, stopped at any point, and started again."""

    def __init__(self, root: Path, objects: int = 12) -> None:
        self.layout = Layout(root)
        for path in (self.layout.shards, self.layout.tmp, self.layout.leases, self.layout.index):
            path.mkdir(exist_ok=True)
        self.objects = [ObjectInfo(f"key-{i}", UNIT, "e") for i in range(objects)]
        self.rules = DatasetRules("train", "1-a", first=SHARD_SIZE)
        self.start()

    def start(self, source: str = "s") -> Recovered:
        self.index = Index.open(self.layout.index, "train", source)
        if not self.index.complete:
            self.index.append(self.objects)
            self.index.finish(())
        self.catalog = Catalog(self.layout.catalog)
        self.state = State(Ledger(1 << 30, footprint(SHARD_SIZE)), SHARD_SIZE, 2, "b")
        self.found = recover(
            self.layout, self.catalog, self.index, self.rules, SHARD_SIZE, self.state
        )
        self.plan = self.found.state.plan
        self.plan.extend()
        return self.found

    def stop(self) -> None:
        self.index.close()
        self.catalog.close()

    def restart(self, source: str = "s") -> Recovered:
        self.stop()
        return self.start(source)

    def restart_catalog(self) -> None:
        self.catalog = Catalog(self.layout.catalog)

    def assign(self) -> Assignment:
        """Plans the next shard and saves the plan, as the daemon does before it tells a worker."""
        found = self.plan.assign()
        assert isinstance(found, Assignment)
        self.catalog.save_progress(saved_plan(self.found.state, self.index))
        return found

    def write(self, assignment: Assignment, fit: int | None = None) -> Outcome:
        path = self.layout.shard(assignment.shard)
        writer = ShardWriter(str(path), SHARD_SIZE)
        done, rest = assignment.units[:fit], assignment.units[len(assignment.units[:fit]) :]
        for unit in done:
            assert writer.append(unit.key.encode() * 100, unit.unit, 0)
        meta = {"dataset": "train", "number": assignment.shard.number, "generation": "1-a",
                "index": self.index.id, "cursor": self.plan.cursor, "schema": SCHEMA,
                "remainder": []}  # fmt: skip
        data, sidecar = writer.finish(json.dumps(meta))
        return Outcome(len(done), data, sidecar, 8192, 0, 0.0, rest)

    def note(self, assignment: Assignment, outcome: Outcome) -> None:
        """The shard's row, in one transaction with the plan."""
        units = {u.unit for u in assignment.units} - {u.unit for u in outcome.remainder}
        parts = self.plan.finish(assignment.shard.number, outcome, sorted(units))
        shard = Shard(
            assignment.shard, "1-a", outcome.records, outcome.data_bytes, outcome.allocated
        )
        self.catalog.save_progress(
            saved_plan(self.found.state, self.index),
            assignment.shard.number,
            shard,
            sorted(units),
            parts,
        )

    def make(self, fit: int | None = None) -> Assignment:
        assignment = self.assign()
        self.note(assignment, self.write(assignment, fit))
        return assignment

    def numbers(self) -> list[int]:
        return sorted(self.found.state.live)

    def rest(self) -> list[int]:
        """The units that the plan still hands out, in ascending order."""
        units = []
        while isinstance(found := self.plan.assign(), Assignment):
            units += [u.unit for u in found.units]
            self.plan.finish(found.shard.number, Outcome(1, 1, 1, 1, 1, 1.0), [])
            self.plan.set_aside(u.unit for u in found.units)
        return sorted(units)


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path)
    yield cache
    cache.stop()


def test_a_clean_restart_keeps_every_shard_and_goes_on_with_the_rest(cache):
    held = {u.unit for _ in range(2) for u in cache.make().units}
    cache.restart()
    assert cache.numbers() == [1, 2]
    assert cache.found.found.removed == []
    assert set(cache.rest()) == set(range(12)) - held


def test_an_open_assignment_is_done_again_under_its_own_number(cache):
    cache.make()
    begun = cache.assign()
    cache.restart()
    assert cache.plan.open == {2: begun}
    assert cache.found.state.retry == {2: 0.0}
    assert cache.plan.next_number == 3


def test_a_plan_saved_with_an_assignment_not_yet_begun_does_not_lose_it(cache):
    """One event may finish a shard and begin the next: two commands, and a kill between them."""
    first = cache.assign()
    outcome = cache.write(first)
    begun = cache.plan.assign()
    cache.note(first, outcome)  # killed before the second command
    cache.restart()
    assert cache.plan.open == {2: begun}
    done = {u.unit for u in (*first.units, *begun.units)}
    assert set(cache.rest()) == set(range(12)) - done


def test_a_unit_taken_out_of_an_open_assignment_stays_out_of_it(cache):
    assignment = cache.assign()
    poison = assignment.units[0]
    aside = SetAside(poison.unit, poison.key, "two workers died on it")
    cache.plan.without(1, aside)
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), set_aside=[aside])
    cache.restart()
    assert cache.plan.open[1].units == assignment.units[1:]


def test_a_shard_published_but_not_noted_is_adopted_and_not_made_again(cache):
    assignment = cache.assign()
    cache.write(assignment, fit=2)
    cache.restart()
    assert cache.numbers() == [1]
    assert cache.plan.open == {}
    left_over = {u.unit for u in assignment.units[2:]}
    written = {u.unit for u in assignment.units[:2]}
    rest = cache.rest()
    assert left_over <= set(rest)
    assert not written & set(rest)


def test_a_lost_catalog_is_rebuilt_from_the_shards(cache):
    held = {u.unit for _ in range(2) for u in cache.make().units}
    cache.stop()
    cache.layout.catalog.unlink()
    cache.start()
    assert cache.numbers() == [1, 2]
    assert cache.found.schemas == {"1-a": SCHEMA}
    assert cache.plan.next_number == 3
    assert set(cache.rest()) == set(range(12)) - held


@pytest.mark.parametrize("lost", ["", ".idx"])
def test_half_a_pair_costs_that_shard_alone_and_its_units_come_again(cache, lost):
    first, _ = cache.make(), cache.make()
    path = cache.layout.shard(ShardId("train", 1))
    path.with_name(path.name + lost).unlink()
    cache.restart()
    assert cache.numbers() == [2]
    assert len(cache.found.found.removed) == 1
    assert {p.name[:10] for p in (cache.layout.shards / "train").iterdir()} == {"0000000002"}
    assert {u.unit for u in first.units} <= set(cache.rest())


def test_a_truncated_shard_costs_that_shard_alone(cache):
    cache.make(), cache.make()
    path = cache.layout.shard(ShardId("train", 2))
    path.write_bytes(path.read_bytes()[:-1])
    cache.restart()
    assert cache.numbers() == [1]
    assert "bytes long, expected" in cache.found.found.removed[0]


def test_a_shard_without_row_and_with_a_damaged_sidecar_is_removed(cache):
    cache.write(cache.assign())
    path = cache.layout.sidecar(cache.layout.shard(ShardId("train", 1)))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    cache.restart()
    assert cache.numbers() == []
    assert not path.exists()


def test_a_sidecar_under_another_shards_name_is_not_believed(cache):
    cache.write(cache.assign())
    old = cache.layout.shard(ShardId("train", 1))
    new = cache.layout.shard(ShardId("train", 7))
    cache.layout.sidecar(old).rename(cache.layout.sidecar(new))
    old.rename(new)
    cache.restart()
    assert cache.numbers() == []


def test_files_of_others_are_never_touched(cache):
    cache.make()
    foreign = [
        cache.layout.shards / "train" / "notes.txt",
        cache.layout.shards / "train" / "1.tfrecord",
        cache.layout.root / "README",
        cache.layout.tmp / "somebody.txt",
        cache.layout.tmp / "train.1.tfrecord",
    ]
    for path in foreign:
        path.write_text("mine")
    ours = cache.layout.temporary(ShardId("train", 9))
    ours.write_text("half a shard")
    cache.restart()
    assert remove_temporaries(cache.layout) == [ours]
    assert all(path.read_text() == "mine" for path in foreign)


def test_a_listing_that_began_afresh_frees_all_units_and_keeps_the_shards_served(cache):
    cache.make()
    cache.restart(source="another")
    assert cache.numbers() == [1]
    assert cache.plan.next_number == 2
    assert cache.rest() == list(range(12))


def test_a_new_generation_starts_over_and_holds_nothing_of_the_old(cache):
    cache.make()
    cache.rules = DatasetRules("train", "2-b", first=SHARD_SIZE)
    cache.restart()
    assert cache.numbers() == [1]
    assert not cache.found.state.described
    assert cache.plan.next_number == 2
    assert cache.rest() == list(range(12))


def test_a_retired_shard_stays_retired(cache):
    cache.make()
    cache.catalog.retire("train", [1])
    cache.restart()
    assert cache.found.state.live[1].retired


def test_a_unit_set_aside_stays_set_aside(cache):
    aside = SetAside(5, "key-5", "404 Not Found")
    assignment = cache.assign()
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), set_aside=[aside])
    cache.restart()
    assert cache.catalog.set_aside("train") == [aside]
    assert cache.plan.num_aside == 1
    assert assignment.shard.number in cache.plan.open


def test_what_an_older_generation_set_aside_is_tried_again(cache):
    aside = SetAside(5, "key-5", "class 'bird' is not in label.classes")
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), set_aside=[aside])
    cache.rules = DatasetRules("train", "1-b", first=SHARD_SIZE)
    cache.restart()
    assert cache.catalog.set_aside("train") == []
    assert cache.rest() == list(range(12))


def test_a_barred_shard_stays_barred_and_its_units_come_again(cache):
    held = {u.unit for u in cache.make().units}
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), barred=1)
    cache.restart()
    assert not cache.found.state.live[1].served
    assert held <= set(cache.rest())


def test_a_row_noted_while_its_assignment_was_open_does_not_stop_the_next_start(cache):
    assignment = cache.assign()
    cache.write(assignment)
    shard = Shard(assignment.shard, "1-a", len(assignment.units), 1, 1)
    units = [u.unit for u in assignment.units]
    cache.catalog.adopt([Adopted(shard, units)])  # killed right after this
    for _ in range(2):
        cache.restart()
        assert cache.numbers() == [1]
        assert cache.plan.open == {}
    assert not {u.unit for u in assignment.units} & set(cache.rest())


def test_an_assignment_whose_row_outlived_a_failed_write_is_not_taken_up_twice(cache):
    assignment = cache.assign()
    outcome = cache.write(assignment, fit=1)
    cache.note(assignment, outcome)
    saved = saved_plan(cache.found.state, cache.index)
    cache.catalog.save_progress(dataclasses.replace(saved, open=[assignment]))
    cache.restart()
    assert cache.plan.open == {}
    assert sorted(set(cache.rest())) == sorted(set(range(12)) - {assignment.units[0].unit})


def test_a_catalog_that_is_locked_is_no_reason_to_lose_it(cache):
    cache.make()
    cache.stop()
    with contextlib.closing(sqlite3.connect(cache.layout.catalog)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DiskError, match="locked"):
            Catalog(cache.layout.catalog)
    cache.start()
    assert cache.numbers() == [1]
    assert not cache.catalog.rebuilt


def test_a_catalog_locked_by_another_program_refuses_as_a_disk_error(cache):
    with contextlib.closing(sqlite3.connect(cache.layout.catalog)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DiskError, match="locked"):
            cache.catalog.retire("train", [1])
    cache.catalog.retire("train", [1])


def test_a_schema_that_was_never_saved_is_read_from_a_sidecar(cache):
    cache.make()
    assert cache.catalog.schema("train", "1-a") is None
    assert cache.restart().schemas == {"1-a": SCHEMA}


def test_without_a_catalog_the_rest_of_a_cut_unit_is_fetched(cache):
    assignment = cache.assign()
    unit = assignment.units[0]
    path = cache.layout.shard(assignment.shard)
    writer = ShardWriter(str(path), SHARD_SIZE)
    for ordinal in range(3):
        assert writer.append(b"record", unit.unit, ordinal)
    meta = {"dataset": "train", "number": 1, "generation": "1-a", "index": cache.index.id,
            "cursor": 1, "schema": SCHEMA, "remainder": [[unit.unit, 3, 900]]}  # fmt: skip
    writer.finish(json.dumps(meta))
    cache.stop()
    cache.layout.catalog.unlink()
    cache.start()
    rest = cache.plan.assign()
    assert isinstance(rest, Assignment)
    assert (rest.units[0].unit, rest.units[0].ordinal, rest.units[0].offset) == (unit.unit, 3, 900)


def test_a_start_bars_a_shard_that_holds_a_unit_which_another_holds(cache):
    first = cache.make()
    second = cache.make()
    again = dataclasses.replace(second, units=(first.units[0], *second.units[1:]))
    for path in cache.layout.shards.glob("*/0000000002*"):
        path.unlink()
    cache.catalog.remove(second.shard)
    cache.write(again)
    found = cache.restart().state
    assert found.twice == (2,)
    assert cache.restart().state.twice == (2,), "the daemon has not barred it yet"


def test_of_an_older_generation_a_shard_that_was_given_up_is_not_leased_though_the_catalog_is_lost(
    cache,
):
    first = cache.make()
    second = cache.make()
    again = dataclasses.replace(second, units=(first.units[0], *second.units[1:]))
    for path in cache.layout.shards.glob("*/0000000002*"):
        path.unlink()
    cache.write(again)
    cache.stop()
    cache.layout.catalog.unlink()
    cache.rules = dataclasses.replace(cache.rules, generation="2-b")
    cache.start()
    for _ in range(2):
        live = cache.found.state.live
        assert [number for number in live if not live[number].barred] == [1]
        cache.restart()


def test_a_shard_that_is_numbered_by_another_listing_than_its_generation_is_barred(cache):
    cache.make()
    cache.make()
    cache.catalog.remove(ShardId("train", 2))
    path = cache.layout.shard(ShardId("train", 2))
    path.unlink()
    cache.layout.sidecar(path).unlink()
    writer = ShardWriter(str(path), SHARD_SIZE)
    assert writer.append(b"x", 5, 0)
    meta = {"dataset": "train", "number": 2, "generation": "1-a", "index": "0" * 16}
    writer.finish(json.dumps(meta))
    found = cache.restart().state
    assert [number for number in found.live if not found.live[number].barred] == [1]


@pytest.mark.parametrize("cursor", [2**64, -1, "12", None, [2**64], [None], 1.5])
def test_a_sidecar_whose_cursor_no_walk_comes_to_stops_no_start(cache, cursor, monkeypatch):
    real = reconcile._from_sidecar

    def poisoned(*arguments):
        kept, units = real(*arguments)
        return dataclasses.replace(kept, adopted={**kept.adopted, "cursor": cursor}), units

    cache.make(), cache.make()
    cache.stop()
    cache.layout.catalog.unlink()
    monkeypatch.setattr(reconcile, "_from_sidecar", poisoned)
    cache.start()
    assert cache.numbers() == [1, 2]
    assert cache.assign().shard.number == 3
