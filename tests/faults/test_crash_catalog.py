"""A power failure takes back what SQLite had not synced yet: the catalog is older than the shards, or gone.

Nothing else does: shards, sidecars, manifests and listings are synced before anybody hears of them.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from cachecd.model import Assignment, ShardId
from cachecd.recovery import recover_leases, saved_plan
from cachecd_client._core import ShardWriter
from cachecd_client.lease import HeldLease
from cachecd_client.protocol import Manifest, encode_manifest
from tests.test_recovery import SCHEMA, SHARD_SIZE, Cache


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    cache = Cache(tmp_path / "cache")
    yield cache
    cache.stop()


def remember(cache: Cache, to: Path) -> None:
    cache.catalog.close()
    shutil.copy(cache.layout.catalog, to)
    cache.restart_catalog()


def set_back(cache: Cache, to: Path) -> None:
    """The machine comes up again with the catalog of then and the shards of now."""
    cache.stop()
    shutil.copy(to, cache.layout.catalog)
    cache.start()


def seal(cache: Cache, assignment: Assignment, records: dict[int, range], rest: list) -> None:
    writer = ShardWriter(str(cache.layout.shard(assignment.shard)), SHARD_SIZE)
    for unit, ordinals in records.items():
        for ordinal in ordinals:
            assert writer.append(b"record", unit, ordinal)
    number = assignment.shard.number
    meta = {"dataset": "train", "number": number, "generation": "1-a", "index": cache.index.id,
            "cursor": cache.plan.cursor, "schema": SCHEMA, "remainder": rest}  # fmt: skip
    writer.finish(json.dumps(meta))


def test_shards_that_the_catalog_has_not_heard_of_are_kept_and_their_numbers_not_used_again(
    cache, tmp_path
):
    held = {u.unit for u in cache.make().units}
    remember(cache, tmp_path / "then")
    held |= {u.unit for _ in range(2) for u in cache.make().units}
    set_back(cache, tmp_path / "then")
    for _ in range(2):
        assert cache.numbers() == [1, 2, 3]
        assert cache.plan.next_number == 4
        cache.restart()  # no plan has been saved yet
    assert set(cache.rest()) == set(range(12)) - held


def test_a_number_whose_shard_was_never_finished_does_not_hold_up_the_plan(cache, tmp_path):
    held = {u.unit for u in cache.make().units}
    remember(cache, tmp_path / "then")
    cache.assign()  # 2: lost with the power
    held |= {u.unit for u in cache.make().units}
    set_back(cache, tmp_path / "then")
    assert cache.numbers() == [1, 3]
    assert set(cache.rest()) == set(range(12)) - held


def test_what_is_left_of_a_cut_unit_is_taken_from_the_sidecar_that_the_catalog_has_not_heard_of(
    cache, tmp_path
):
    cache.make()
    remember(cache, tmp_path / "then")
    assignment = cache.assign()
    unit = assignment.units[0].unit
    seal(cache, assignment, {unit: range(3)}, [[unit, 3, 900]])
    set_back(cache, tmp_path / "then")
    parts = [u for u in parts_to_come(cache) if u[0] == unit]
    assert parts == [(unit, 3, 900)]


def test_a_rest_that_a_shard_unknown_to_the_catalog_has_is_not_done_again(cache, tmp_path):
    """The plan of then has it still to do."""
    first = cache.assign()
    unit = first.units[0].unit
    seal(cache, first, {unit: range(3)}, [[unit, 3, 900]])
    cache.restart()  # adopts the shard, and saves what is left of the unit
    remember(cache, tmp_path / "then")
    second = cache.assign()
    seal(cache, second, {unit: range(3, 5)}, [[unit, 5, 1500]])
    set_back(cache, tmp_path / "then")
    assert cache.numbers() == [1, 2]
    assert [u for u in parts_to_come(cache) if u[0] == unit] == [(unit, 5, 1500)]


def parts_to_come(cache: Cache) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(20):
        assignment = cache.plan.assign()
        if not isinstance(assignment, Assignment):
            break
        found += [(u.unit, u.ordinal, u.offset) for u in assignment.units]
        cache.plan.set_aside(u.unit for u in assignment.units)
    return found


def test_killed_while_it_rebuilds_the_catalog_the_next_start_still_knows_what_is_cut(cache):
    assignment = cache.assign()
    unit = assignment.units[0].unit
    seal(cache, assignment, {unit: range(3)}, [[unit, 3, 900]])
    cursor = cache.plan.cursor
    cache.stop()
    cache.layout.catalog.unlink()
    cache.start()  # rows are adopted, and it is killed before any plan is saved
    cache.restart()
    assert cache.plan.cursor == cursor
    assert (unit, 3, 900) in parts_to_come(cache)


def test_a_mark_survives_starts_that_go_by_the_sidecars(cache):
    cache.make(), cache.make()
    cache.stop()
    cache.layout.catalog.unlink()
    cache.start()
    cache.catalog.retire("train", [1])
    cache.catalog.save_progress(saved_plan(cache.found.state, cache.index), barred=2)
    cache.restart()
    assert cache.found.state.live[1].retired
    assert cache.found.state.live[2].barred
    assert cache.plan.next_number == 3


def test_killed_between_retiring_and_noting_the_debt_no_more_is_retired_than_may_be(cache):
    cache.make(), cache.make()
    cache.catalog.retire("train", [1])  # killed before the plan is saved
    cache.restart()
    state = cache.found.state
    assert state.debt == state.live[1].shard.allocated


def manifest(cache: Cache, last: int) -> Path:
    path = cache.layout.manifest("train.0.j.b1")
    path.write_bytes(
        encode_manifest(
            Manifest(
                1,
                "train.0.j.b1",
                "train",
                "j",
                0,
                "1-a",
                [[1, last]],
                1,
                1,
                1,
                None,
                False,
                "f",
                SCHEMA,
            )
        )
    )
    return path


def test_a_number_that_a_lease_names_is_not_given_to_another_shard(cache):
    """Not even if the shard was lost with the catalog: the holder would read other records."""
    cache.make(), cache.make()
    with closing(HeldLease(manifest(cache, last=5))):
        cache.stop()
        cache.layout.catalog.unlink()
        cache.start()
        assert recover_leases(cache.layout, cache.state, 0.0) == []
    assert cache.plan.next_number == 6
    assert cache.assign().shard.number == 6


def test_a_manifest_of_no_length_that_nobody_holds_goes(cache):
    path = manifest(cache, last=1)
    path.write_bytes(b"")
    (line,) = recover_leases(cache.layout, cache.state, 0.0)
    assert path.name in line
    assert not path.exists()


def test_a_shard_published_but_not_noted_leaves_the_plan_as_noting_it_would_have(cache, tmp_path):
    """So a kill changes no later shard."""
    assignment = cache.assign()
    outcome = cache.write(assignment, fit=2)
    cache.restart()
    found = cache.plan.to_json()
    cache.stop()
    cache.layout.catalog.unlink()
    path = cache.layout.shard(assignment.shard)
    path.unlink(), cache.layout.sidecar(path).unlink()
    cache.start()
    again = cache.assign()
    assert again == assignment
    cache.note(again, outcome)
    assert found == cache.plan.to_json()


def test_a_sidecar_too_short_to_be_whole_costs_its_shard_at_the_start(cache):
    cache.make(), cache.make()
    cache.layout.sidecar(cache.layout.shard(ShardId("train", 2))).write_bytes(b"")
    cache.restart()
    assert cache.numbers() == [1]
    assert "0 bytes long" in cache.found.found.removed[0]
