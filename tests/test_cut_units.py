"""A unit that was cut over two shards, and then one of them is lost: its records come again, once."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd import events as ev
from cachecd.model import Outcome, SetAside, ShardId, UnitSlice
from cachecd.parts import Part, gaps, part_of, parts_made, parts_written, slices_of
from cachecd.rules import DatasetRules
from tests.units import Records, full, records_of
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers

FIRST = ShardId("eval", 1)


def begun(*, pin: bool = True, units: int = 5) -> tuple[World, UnitSlice]:
    """A world whose first shard is sealed and ends within a unit, and what is left of that."""
    rules = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=pin)
    w = World(8 * FOOTPRINT, {rules: Units([UNIT] * units)}, workers=1)
    assignment = w.making[FIRST]
    *whole, last = assignment.units
    rest = dataclasses.replace(last, ordinal=1, offset=100)
    fits = dataclasses.replace(assignment, units=(*whole, dataclasses.replace(last, stop=1)))
    w.make(FIRST, dataclasses.replace(full(fits), remainder=(rest,)))
    w.publish(FIRST)
    return w, rest


def cut_world(*, pin: bool = True) -> tuple[World, ShardId]:
    """All is there; a unit is partly in the first shard, and partly in the other that is returned."""
    w, rest = begun(pin=pin)
    w.settle()
    assert w.model.whole("eval")
    (second,) = (s for s, held in w.disk.items() if (rest.unit, rest.ordinal) in held)
    assert second != FIRST
    return w, second


def lose(w: World, *shards: ShardId) -> None:
    for shard in shards:
        w.found_corrupt(shard)


def leased(w: World, epoch: int = 0) -> Records:
    """The records of a set, of which none may be there twice."""
    lease = granted(w.acquire("eval", "job", epoch))
    every = [r for n in numbers(w, lease) for r in w.disk[ShardId("eval", n)]]
    assert len(every) == len(set(every)) == w.manifests[lease].num_records
    return set(every)


@pytest.mark.parametrize("lost", ["first", "second", "first second", "second first"])
def test_a_pinned_set_waits_for_the_lost_part_and_then_is_whole(lost):
    w, second = cut_world()
    lose(w, *({"first": FIRST, "second": second}[name] for name in lost.split()))
    assert isinstance(w.acquire("eval", "job", 0), ev.ReplyWaiting)
    w.settle()
    assert leased(w) == w.model.source("eval")


def test_only_the_lost_part_of_a_unit_is_fetched_again():
    w, _ = cut_world()
    before = w.disk[FIRST]
    lose(w, FIRST)
    (assignment,) = w.making.values()
    assert records_of(assignment.units) <= before
    w.settle()
    assert leased(w) == w.model.source("eval")


def test_a_part_that_was_fetched_again_may_be_lost_again():
    w, _ = cut_world()
    for epoch in range(3):
        lose(w, min(w.disk))
        w.settle()
        assert leased(w, epoch) == w.model.source("eval")
        w.drop(next(iter(w.manifests)))
        w.settle()


def test_the_lost_part_of_a_set_that_rotates_comes_again_at_once_too():
    w, _ = cut_world(pin=False)
    lose(w, FIRST)
    w.settle()
    assert leased(w) == w.model.source("eval")


def test_killed_before_the_lost_part_is_there_again_the_next_start_fetches_it():
    w, _ = cut_world()
    lose(w, FIRST)
    for _ in range(2):
        w.restart()
        assert isinstance(w.acquire("eval", "job", 0), ev.ReplyWaiting)
    w.settle()
    assert leased(w) == w.model.source("eval")
    w.restart()
    assert not w.making


@pytest.mark.parametrize("catalog", ["kept", "lost"])
@pytest.mark.parametrize("missing", ["first", "second"])
def test_a_pinned_sets_shard_that_a_start_misses_comes_again_with_its_part(missing, catalog):
    w, second = cut_world()
    shard = FIRST if missing == "first" else second
    del w.disk[shard], w.meta[shard]
    w.model.of["eval"].shards.pop(shard.number)
    w.restart(lost_catalog=catalog == "lost")
    assert isinstance(w.acquire("eval", "job", 0), ev.ReplyWaiting)
    w.settle()
    assert leased(w) == w.model.source("eval")


@pytest.mark.parametrize("pin", [True, False])
def test_without_a_catalog_the_rest_of_a_unit_whose_beginning_was_made_again_is_fetched(pin):
    """The sidecar that told of the rest is gone with the first beginning."""
    w, rest = begun(pin=pin, units=9)
    lose(w, FIRST)
    while not any((rest.unit, 0) in held for shard, held in w.disk.items() if shard != FIRST):
        w.work(1)
    assert not any((rest.unit, rest.ordinal) in held for held in w.disk.values())
    w.restart(lost_catalog=True)
    w.settle()
    assert leased(w) == w.model.source("eval")


def failed(*, pin: bool, passing: bool = True) -> tuple[World, UnitSlice]:
    """All is there but what is left of the unit that was cut: that has failed."""
    w, rest = begun(pin=pin, units=9)
    bad = SetAside(rest.unit, rest.key, "503", passing=passing)
    while w.making or w.publishing:
        w.work(1)
        for shard, assignment in list(w.making.items()):
            if assignment.units[0].unit == rest.unit:
                others = dataclasses.replace(assignment, units=assignment.units[1:])
                made = full(others) if others.units else Outcome(0, 0, 0, 0, 0, 0.0)
                w.make(shard, dataclasses.replace(made, set_aside=(bad,)))
    w.feed(ev.Listed("eval", complete=True, fresh=True))
    w.tick()
    w.settle()
    return w, rest


def test_a_unit_that_failed_after_a_part_of_it_stays_set_aside_in_a_pinned_set():
    """Taken back while a shard holds the part, it would be fetched twice, or seem to be whole."""
    w, rest = failed(pin=True)
    assert w.model.of["eval"].aside == {rest.unit}
    there = {r for r in w.model.source("eval") if r[0] != rest.unit} | {(rest.unit, 0)}
    assert leased(w) == there


def test_in_a_set_that_rotates_it_is_tried_again_once_no_shard_holds_a_part_of_it():
    """Taken back before, it would be free to nobody, and its rest in no queue."""
    w, rest = failed(pin=False)
    for _ in range(3):
        w.tick(4000)
        w.settle()
        assert w.model.of["eval"].aside == {rest.unit}
    lose(w, FIRST)
    w.settle()
    w.tick(4000)
    w.settle()
    assert w.model.of["eval"].aside == set()
    assert leased(w) == w.model.source("eval")


@pytest.mark.parametrize("pin", [True, False])
def test_a_unit_whose_rest_is_gone_is_not_whole_because_a_listing_says_so(pin):
    w, rest = failed(pin=pin, passing=False)
    unit, none = np.array([rest.unit]), np.zeros(0, np.int64)
    for gone, back in ((unit, none), (none, unit)):
        w.feed(ev.Relisted("eval", gone, back))
        w.feed(ev.Listed("eval", complete=True, fresh=True))
        w.settle()
        assert w.model.of["eval"].aside == {rest.unit}
    lose(w, FIRST)
    w.feed(ev.Listed("eval", complete=True, fresh=True))
    w.tick(4000)
    w.settle()
    assert leased(w) == w.model.source("eval")


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("barred", ["before", "after"])
def test_a_cut_unit_that_is_let_in_again_comes_whole(barred, pin):
    w, rest = begun(pin=pin, units=9)
    while rest.unit not in {u.unit for a in w.making.values() for u in a.units}:
        w.work(1)
    w.exclude("eval", [rest.unit])
    if barred == "before":
        w.verified(FIRST, sound=True)
    w.let_in("eval", [rest.unit])
    w.settle()
    assert leased(w) == w.model.source("eval")


def test_what_was_left_over_of_a_unit_comes_again_when_it_is_let_in():
    w, rest = begun(units=9)
    w.exclude("eval", [rest.unit])
    w.let_in("eval", [rest.unit])
    w.settle()
    assert leased(w) == w.model.source("eval")


END = 50  # records of a unit


def covered(parts: list[Part]) -> list[tuple[int, int]]:
    return sorted((p.unit, o) for p in parts for o in range(p.ordinal, p.stop or END))


@given(
    st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.sets(st.integers(1, END - 1), max_size=6), st.sets(st.integers(0, 6))),
        min_size=1,
    )
)
def test_parts_and_the_gaps_between_them_are_every_record_once(units):
    there, lost = [], []
    for unit, (cuts, gone) in units.items():
        bounds = [0, *sorted(cuts), 0]
        for place, (begin, stop) in enumerate(pairwise(bounds)):
            (lost if place in gone else there).append(Part(unit, begin, 0, stop))
    known = {part.unit for part in there}
    assert covered(gaps(there)) == covered([part for part in lost if part.unit in known])


def test_a_unit_that_is_whole_has_no_gap():
    assert gaps([Part(1, 0, 0), Part(2, 0, 0, 7), Part(2, 7, 900)]) == []


def test_a_shards_parts_are_those_of_the_units_that_it_was_not_given_or_did_not_take_whole():
    units = [
        UnitSlice(1, "a", 9),
        UnitSlice(2, "b", 9, ordinal=4, offset=80),
        UnitSlice(3, "c", 9, ordinal=2, stop=6),
        UnitSlice(4, "d", 9, stop=8),
        UnitSlice(5, "e", 9, ordinal=3),
    ]
    rest = (UnitSlice(4, "d", 9, ordinal=5, stop=8), units[4])
    outcome = Outcome(1, 1, 1, 1, 1, 1.0, remainder=rest)
    made = [Part(2, 4, 80), Part(3, 2, 0, 6), Part(4, 0, 0, 5)]
    assert [*parts_made(units, outcome, {1, 2, 3, 4})] == made
    # The sidecar says the same, but where in the object a part begins.
    written, firsts = np.array([1, 2, 3, 4], np.uint64), np.array([0, 4, 2, 0], np.uint32)
    told = parts_written(written, firsts, [part_of(u) for u in rest], {3: 6, 4: 8})
    assert [*told] == [part._replace(offset=0) for part in made]


def test_a_slice_is_stored_and_found_again_and_one_stored_without_its_stop_goes_to_the_end():
    unit = UnitSlice(3, "c", 9, "tag", ordinal=2, offset=5, stop=6)
    listed = {3: UnitSlice(3, "c", 9, "tag")}
    assert slices_of([part_of(unit)], listed.__getitem__) == (unit,)
    assert slices_of([[3, 2, 5]], listed.__getitem__)[0].stop == 0
