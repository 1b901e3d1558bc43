"""The plan: the same shards on every run, every unit once a pass, nothing lost in between."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.backlog import Backlog, Effect
from cachecd.model import Assignment, Outcome, SetAside, UnitSlice
from cachecd.plan import WINDOW, Blocked, Exhausted, Plan
from tests.units import RECORDS_PER_UNIT, mixed, records_of
from tests.world import SHARD_SIZE, Units


class Listing(Units):
    """A listing that runs: its blocks end after 10, 20, 40 ... units, and where it ends."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.listed = 0

    def __len__(self) -> int:
        return self.listed

    @property
    def ends(self) -> list[int]:
        ends = [10 << k for k in range(20) if 10 << k <= self.listed]
        return ends + ([self.listed] if self.listed == len(self._sizes) else [])


def plan_of(sizes: list[int], seed: int = 17, interleave: int = 1) -> Plan:
    plan = Plan("train", "g", Units(sizes), seed, SHARD_SIZE, interleave)
    plan.extend()
    return plan


MIXED = -1


def outcome(assignment: Assignment, fit: int | None = None, growth: float = 1.0) -> Outcome:
    """The first `fit` units become records, each byte `growth` bytes; the rest is left over. MIXED: as
    many records as fit, of each unit in turn."""
    if fit == MIXED:
        return mixed(assignment)
    done = assignment.units[:fit]
    size = int(sum(u.size for u in done) * growth)
    rest = assignment.units[len(done) :]
    return Outcome(len(done), size, 0, size, 0, 0.0, rest)


def finish(plan: Plan, assignment: Assignment, fit: int | None = None, growth: float = 1.0) -> None:
    made = outcome(assignment, fit, growth)
    plan.finish(assignment.shard.number, made, held_of(assignment, made))


def held_of(assignment: Assignment, made: Outcome) -> list[int]:
    before = {u.unit: u.ordinal for u in assignment.units}
    return sorted(before.keys() - {u.unit for u in made.remainder if u.ordinal == before[u.unit]})


def run_out(plan: Plan, at_once: int, order: random.Random, fit: int | None = None) -> list:
    """Assigns and finishes shards in a random order until nothing is left; unit numbers by shard."""
    shards, open_ones = {}, []
    while True:
        found = plan.assign() if len(open_ones) < at_once else Blocked()
        if isinstance(found, Assignment):
            shards[found.shard.number] = [(u.unit, u.ordinal) for u in found.units]
            open_ones.append(found)
        elif open_ones:
            finish(plan, open_ones.pop(order.randrange(len(open_ones))), fit)
        elif isinstance(found, Exhausted):
            return [shards[n] for n in sorted(shards)]


def test_every_unit_is_handed_out_exactly_once_until_everything_is_held():
    plan = plan_of([5000] * 500)
    handed = Counter(unit for shard in run_out(plan, 4, random.Random(1)) for unit, _ in shard)
    assert handed == Counter(range(500))
    assert not plan.has_work


def test_a_shard_is_given_about_what_fills_it():
    plan = plan_of([5000] * 500)
    first = plan.assign()
    assert 0.8 * SHARD_SIZE < sum(u.size for u in first.units) <= SHARD_SIZE


def test_a_unit_larger_than_a_shard_gets_one_of_its_own():
    plan = plan_of([10 * SHARD_SIZE] * 3)
    assert [len(plan.assign().units) for _ in range(3)] == [1, 1, 1]


def test_another_seed_gives_another_order():
    orders = [[u.unit for u in plan_of([5000] * 500, seed).assign().units] for seed in (1, 2)]
    assert orders[0] != orders[1]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, WINDOW), st.integers(1, 20), st.integers(1, 200))
def test_the_plan_is_the_same_however_many_are_made_at_once_and_in_whatever_order(
    chance, at_once, fit, units
):
    sizes = [random.Random(i).randrange(0, 20_000) for i in range(units)]
    alone = run_out(plan_of(sizes), 1, random.Random(0), fit)
    together = run_out(plan_of(sizes), at_once, random.Random(chance), fit)
    assert together == alone
    assert {unit for shard in alone for unit, _ in shard} == set(range(units))


def test_no_shard_is_planned_while_one_it_depends_on_is_being_made():
    plan = plan_of([SHARD_SIZE] * 100)
    started = [plan.assign() for _ in range(WINDOW)]
    assert isinstance(plan.assign(), Blocked)
    for late in started[1:]:
        finish(plan, late)
    assert isinstance(plan.assign(), Blocked)
    finish(plan, started[0])
    assert isinstance(plan.assign(), Assignment)


def test_what_a_byte_becomes_decides_how_many_units_later_shards_get():
    plan = plan_of([1000] * 5000)
    counts = []
    for _ in range(3 * WINDOW):
        found = plan.assign()
        counts.append(len(found.units))
        finish(plan, found, growth=4.0)
    assert counts[0] > 50
    assert 12 <= counts[-1] <= 16


def test_units_of_a_vanished_shard_come_again_in_the_next_pass():
    plan = plan_of([SHARD_SIZE // 2] * 10)
    first = plan.assign()
    finish(plan, first)
    while isinstance(found := plan.assign(), Assignment):
        finish(plan, found)
    assert isinstance(found, Exhausted)
    plan.release([u.unit for u in first.units])
    again = plan.assign()
    assert {u.unit for u in again.units} == {u.unit for u in first.units}
    assert again.shard.number == plan.next_number - 1


def test_a_unit_set_aside_never_comes_again():
    plan = plan_of([SHARD_SIZE] * 3)
    found = plan.assign()
    bad = found.units[0]
    plan.finish(1, Outcome(0, 0, 0, 0, 0, 0.0, (), (SetAside(bad.unit, bad.key, "bad"),)), [])
    others = run_out(plan, 1, random.Random(0))
    assert bad.unit not in {unit for shard in others for unit, _ in shard}
    assert (plan.num_aside, plan.has_work) == (1, False)


def test_new_objects_are_walked_after_those_that_were_known():
    plan = plan_of([SHARD_SIZE] * 4)
    known = [plan.assign().units[0].unit for _ in range(2)]
    plan._units.append([SHARD_SIZE] * 4)
    plan.extend()
    rest = [plan.assign().units[0].unit for _ in range(6)]
    assert sorted(known + rest[:2]) == [0, 1, 2, 3]
    assert sorted(rest[2:]) == [4, 5, 6, 7]


def runs(
    sizes: list[int], chance: random.Random, steps: int, fit: int | None, interleave: int = 1
) -> list:
    """Shards of a plan whose listing gets on by up to so many units between any two of its steps; and
    that is begun anew from what it saved whenever chance has it so."""
    units = Listing(sizes)
    plan = Plan("train", "g", units, 17, SHARD_SIZE, interleave)
    shards, held = {}, Counter()
    while True:
        units.listed = min(units.listed + chance.randint(0, steps), len(sizes))
        plan.extend(units.listed == len(sizes))
        found = plan.assign()
        if isinstance(found, Assignment):
            shards[found.shard.number] = [(u.unit, u.ordinal) for u in found.units]
        elif plan.open:
            late = plan.open[chance.choice(sorted(plan.open))]
            made = outcome(late, fit)
            now = held_of(late, made)
            held.update(now)
            plan.finish(late.shard.number, made, now)
        elif isinstance(found, Exhausted):
            return [shards[n] for n in sorted(shards)]
        if chance.random() < 0.1:
            again = Plan("train", "g", units, 17, SHARD_SIZE, interleave)
            again.restore(plan.to_json(), plan.open.values())
            again.extend(units.listed == len(sizes))
            again.hold(sorted(held.elements()))
            plan = again


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 20), st.integers(1, 200))
def test_the_plan_is_the_same_however_slow_the_listing_and_wherever_it_was_interrupted(
    chance, steps, fit, units
):
    sizes = [random.Random(i).randrange(0, 20_000) for i in range(units)]
    at_once = runs(sizes, random.Random(0), 10**6, fit)
    assert runs(sizes, random.Random(chance), steps, fit) == at_once
    assert {unit for shard in at_once for unit, _ in shard} == set(range(units))


def large(units: int) -> list[int]:
    """From a fraction of a shard to some shards, as records that would fit by themselves."""
    return [random.Random(i).randrange(0, 4 * SHARD_SIZE) for i in range(units)]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, WINDOW), st.sampled_from([3, 16]), st.integers(1, 60))
def test_mixed_shards_are_the_same_whatever_the_timing(chance, at_once, interleave, units):
    sizes = large(units)
    plan = plan_of(sizes, interleave=interleave)
    alone = run_out(plan, 1, random.Random(0), MIXED)
    assert (
        run_out(plan_of(sizes, interleave=interleave), at_once, random.Random(chance), MIXED)
        == alone
    )
    assert not plan.left_over
    slow = runs(sizes, random.Random(chance), 20, MIXED, interleave)
    assert slow == runs(sizes, random.Random(0), 10**6, MIXED, interleave)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 3, 16]), st.integers(1, 60))
def test_mixed_shards_have_every_record_once(interleave, units):
    plan = plan_of(large(units), interleave=interleave)
    written: Counter[tuple[int, int]] = Counter()
    while isinstance(found := plan.assign(), Assignment):
        finish(plan, found, MIXED)
        written.update(records_of(found.units) - records_of(outcome(found, MIXED).remainder))
    assert written == Counter({(u, n): 1 for u in range(units) for n in range(RECORDS_PER_UNIT)})


def test_a_shard_takes_a_part_of_as_many_large_units_as_it_shall_mix():
    plan = plan_of([10 * SHARD_SIZE] * 1000, interleave=16)
    seen: list[set[int]] = []
    for _ in range(3 * WINDOW):
        found = plan.assign()
        seen.append({u.unit for u in found.units})
        finish(plan, found, MIXED)
    assert {len(units) for units in seen} == {16}
    assert seen[WINDOW] == seen[0], "what is left of them comes before other units"
    assert len(set().union(*seen)) == 16 * WINDOW, "no more are begun than are mixed"


def test_small_units_are_as_many_as_fit_and_a_large_one_takes_no_more_than_its_share():
    plan = plan_of([500] * 999 + [9 * SHARD_SIZE], interleave=16)
    counts = []
    while isinstance(found := plan.assign(), Assignment):
        counts.append((len(found.units), 999 in {u.unit for u in found.units}))
        finish(plan, found)
    share = SHARD_SIZE * 0.97 / 16
    whole = max(count for count, _ in counts)
    with_large = next(count for count, large in counts if large)
    assert whole > 95
    assert 0 <= whole - with_large <= share / 500 + 1


def test_of_objects_that_are_read_from_their_start_alone_a_shard_has_whole_ones():
    class Packed(Units):
        def unit(self, number: int) -> UnitSlice:
            return replace(super().unit(number), key=f"{number}.tar.GZ")

    plan = Plan("train", "g", Packed([SHARD_SIZE // 4] * 1000), 17, SHARD_SIZE, 16)
    plan.extend()
    assert len(plan.assign().units) == 3


def test_a_source_of_few_units_is_not_all_in_one_shard_at_a_time():
    plan = plan_of([10 * SHARD_SIZE] * 8, interleave=16)
    at_once = [plan.assign() for _ in range(4)]
    assert [len(found.units) for found in at_once] == [2] * 4
    assert isinstance(plan.assign(), Blocked)


def test_a_shard_that_the_listed_units_do_not_fill_waits_for_more_of_them():
    units = Listing([1000] * 500)
    plan = Plan("train", "g", units, 17, SHARD_SIZE)
    plan.extend(complete=False)
    assert isinstance(plan.assign(), Blocked)
    units.listed = 25
    plan.extend(complete=False)
    assert (isinstance(plan.assign(), Blocked), plan.num_units) == (True, 20)
    units.listed = 85
    plan.extend(complete=False)
    first = plan.assign()
    assert len(first.units) > 40
    assert {u.unit for u in first.units[:10]} == set(range(10))  # block by block
    finish(plan, first)
    assert isinstance(plan.assign(), Blocked)


def test_a_listing_that_is_stuck_is_walked_to_what_it_came_to_and_from_the_beginning_again():
    units = Listing([SHARD_SIZE] * 500)
    units.listed = 13
    plan = Plan("train", "g", units, 17, SHARD_SIZE)
    plan.extend(complete=False)
    known = [plan.assign().units[0].unit for _ in range(10)]
    assert isinstance(plan.assign(), Blocked)
    plan.make_do()
    known += [plan.assign().units[0].unit for _ in range(3)]
    assert sorted(known) == list(range(13))
    finish(plan, plan.open[1])
    plan.release([known[0]])
    assert plan.assign().units[0].unit == known[0]
    units.listed = 20
    plan.extend(complete=False)
    finish(plan, plan.open[2])
    assert sorted(plan.assign().units[0].unit for _ in range(1))[0] >= 13


def test_a_unit_that_cannot_be_read_leaves_the_plan_as_it_was(monkeypatch):
    plan, expected = plan_of([5000] * 500), plan_of([5000] * 500)
    with monkeypatch.context() as patched:
        patched.setattr(plan._units, "unit", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            plan.assign()
    assert [plan.assign() for _ in range(5)] == [expected.assign() for _ in range(5)]


@pytest.mark.parametrize("stop_after", [0, 1, 5, 20, 40])
def test_a_saved_plan_goes_on_as_if_it_had_never_stopped(stop_after):
    sizes = [random.Random(i).randrange(0, 9_000) for i in range(600)]

    def steps(plan: Plan, count: int, lag: list[Assignment]) -> list:
        found = []
        for _ in range(count):
            given_out = plan.assign()
            found.append(given_out)
            lag.append(given_out)
            if len(lag) > 3:
                finish(plan, lag.pop(0), fit=6)
        return found

    straight = plan_of(sizes)
    expected = steps(straight, 60, [])
    before, lag = plan_of(sizes), []
    seen = steps(before, stop_after, lag)
    after = Plan("train", "g", Units(sizes), 17, SHARD_SIZE)
    after.restore(before.to_json(), before.open.values())
    after.hold(sorted(unit for n in seen if n.shard.number not in before.open for unit in _held(n)))
    assert seen + steps(after, 60 - stop_after, lag) == expected


def _held(assignment: Assignment) -> list[int]:
    return [u.unit for u in assignment.units[:6]]


def test_half_a_unit_left_over_goes_on_where_it_was_cut():
    plan = plan_of([3 * SHARD_SIZE])
    whole = plan.assign().units[0]
    rest = UnitSlice(whole.unit, whole.key, whole.size, whole.etag, ordinal=7, offset=70_000)
    plan.finish(1, Outcome(7, 70_000, 0, 0, 0, 0.0, (rest,)), [whole.unit])
    assert plan.assign().units == (rest,)


def test_numbers_that_no_shard_has_take_no_time_however_many_they_are():
    plan = plan_of([20_000] * 40)
    begun = plan.assign()
    assert isinstance(begun, Assignment)
    plan.overtake(1 << 40)
    plan.overtake(1 << 41)
    again = Plan("train", "g", plan._units, 17, SHARD_SIZE)
    again.restore(plan.to_json(), plan.open.values())
    again.extend()
    assert len(str(plan.to_json())) < 1000
    for one in (plan, again):
        assert not isinstance(one.assign(), Assignment), "the first is still being made"
        one.finish(1, Outcome(1, 1, 1, 1, 1, 1.0), [u.unit for u in begun.units])
        following = one.assign()
        assert isinstance(following, Assignment)
        assert following.shard.number == (1 << 41) + 1


def test_unused_numbers_are_applied_as_far_as_is_asked_and_after_those_before_them():
    backlog = Backlog(applied=2)
    backlog.skip(4, 10)
    assert list(backlog.take_up_to(7)) == []
    backlog.finish(3, Effect())
    assert list(backlog.take_up_to(7)) == [Effect()]
    assert (backlog.applied, backlog.unused) == (7, {8: 10})
    backlog.finish(10, Effect())
    assert list(backlog.take_up_to(20)) == [Effect()]
    assert (backlog.applied, backlog.unused) == (10, {})


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_that_lets_its_open_shards_go_hands_out_every_unit(seed):
    """As a start does that goes on with a walk of which another has made shards meanwhile."""
    chance = random.Random(seed)
    plan = plan_of([chance.choice([1000, 9000, 30_000]) for _ in range(60)])
    opened = [plan.assign() for _ in range(3)]
    held = [opened[0].units]
    plan.finish(1, outcome(opened[0]), [u.unit for u in opened[0].units])
    plan.overtake(plan.next_number + 1)
    plan.resume(plan.let_go())
    assert not plan.open
    while isinstance(found := plan.assign(), Assignment):
        held.append(found.units)
        plan.finish(found.shard.number, outcome(found), [u.unit for u in found.units])
    assert isinstance(found, Exhausted)
    made = Counter(record for units in held for record in records_of(units))
    assert set(made.values()) == {1}
    assert len(made) == 60 * RECORDS_PER_UNIT


# --- a walk goes on where a run left it, on a machine that has listed nothing yet


def test_a_walk_goes_on_behind_what_a_run_has_had_as_soon_as_that_is_listed():
    units = Units([20_000] * 10)
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.extend(False)
    plan.walk.cycle.skip_to(25)
    assert plan.walk.cycle.position == 10, "at the end of what is listed"
    assert plan.cursor == 25, "and who asks now goes on from there"
    assert not isinstance(plan.assign(), Assignment)
    saved = plan.to_json()
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.restore(saved, [])
    units.append([20_000] * 30)
    plan.extend(False)
    assert plan.walk.cycle.position == 25


def test_a_cursor_of_a_later_pass_waits_for_the_listings_end():
    units = Units([20_000] * 10)
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.extend(False)
    plan.walk.cycle.skip_to(25)
    plan.extend(True)
    cycle = plan.walk.cycle
    assert (cycle.passes, cycle.position) == (0, 5), "modulo the units listed"
