"""The plan over several sources: records by their weights, the same on every run, none twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.dataset import DatasetState
from cachecd.model import Assignment, Outcome, SetAside
from cachecd.plan import WINDOW, Blocked, Exhausted, Plan
from cachecd.rules import DatasetRules
from cachecd.sourcewalk import SourceRules
from tests.sources import Kind, Several, work
from tests.units import SHARD_SIZE

Shards = list[list[tuple[int, int]]]


def plan_over(units: Several, weights: Sequence[float], interleave: int = 1) -> Plan:
    rules = [SourceRules(weight, interleave) for weight in weights]
    return Plan("train", "g", units, 17, SHARD_SIZE, rules)


class Run:
    """A plan and what became of its shards; `live` ones hold their units until they are let go."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        weights: Sequence[float],
        interleave: int = 1,
        turns: int = 10**6,
    ) -> None:
        self.weights, self.interleave = weights, interleave
        self.units = Several(kinds)
        self.units.go_on(turns)
        self.plan = plan_over(self.units, weights, interleave)
        self.plan.extend(self.units.complete)
        self.shards: dict[int, list[tuple[int, int]]] = {}
        self.live: dict[int, dict[int, range]] = {}  # of each unit the ordinals
        self.records: dict[int, list[int]] = {}  # of each shard by source

    def assign(self) -> Assignment | Blocked | Exhausted:
        found = self.plan.assign()
        if isinstance(found, Assignment):
            self.shards[found.shard.number] = [(u.unit, u.ordinal) for u in found.units]
        return found

    def finish(self, number: int) -> None:
        assignment = self.plan.open[number]
        done = work(self.units, assignment)
        first = {u.unit: u.ordinal for u in assignment.units}
        self.live[number] = {
            unit: range(first[unit], first[unit] + count) for unit, (count, _) in done.made.items()
        }
        counts = Counter[int]()
        for unit, (count, _) in done.made.items():
            counts[self.units.source_of(unit)] += count
        self.records[number] = [counts[s] for s in range(len(self.weights))]
        self.plan.finish(number, done.outcome, sorted(done.made), done.made)

    def let_go(self, number: int) -> None:
        self.plan.release(sorted(self.live.pop(number)))

    def begin_anew(self) -> None:
        """The daemon is killed, and goes on from what was saved."""
        again = plan_over(self.units, self.weights, self.interleave)
        again.restore(self.plan.to_json(), self.plan.open.values())
        again.extend(self.units.complete)
        for units in self.live.values():
            again.hold(sorted(units))
        self.plan = again

    def make(self, shards: int, keep: int = 10**6) -> None:
        """So many shards, one after the other; of all that are live the latest `keep` stay."""
        for _ in range(shards):
            if not isinstance(found := self.assign(), Assignment):
                return
            self.finish(found.shard.number)
            while len(self.live) > keep:
                self.let_go(min(self.live))

    def shares(self, since: int = 0) -> list[float]:
        """Of the records of all shards from `since` on."""
        counts = [counts for number, counts in self.records.items() if number >= since]
        totals = [sum(column) for column in zip(*counts, strict=True)]
        return [total / sum(totals) for total in totals]

    def check(self) -> None:
        """No record is in two live shards."""
        seen = Counter(
            (u, o) for shard in self.live.values() for u, os in shard.items() for o in os
        )
        assert max(seen.values(), default=1) == 1


IMAGES = Kind(3000, records=1, size=2000, written=6000)  # each a small file, decoded
TEXT = Kind(3000, records=20, size=100, written=80)  # files of short texts
ARRAYS = Kind(1000, records=5, size=1500, written=1500)


@pytest.mark.parametrize("interleave", [1, 16])
@pytest.mark.parametrize(
    ("kinds", "weights"),
    [
        ([IMAGES, IMAGES], [3, 1]),
        ([IMAGES, TEXT], [1, 1]),
        ([TEXT, IMAGES], [0.9, 0.1]),
        ([IMAGES, TEXT, ARRAYS], [2, 1, 5]),
    ],
)
def test_records_follow_the_weights_however_large_units_and_records_are(kinds, weights, interleave):
    run = Run(kinds, weights, interleave)
    run.make(60)
    wanted = [weight / sum(weights) for weight in weights]
    assert len(run.shards) == 60
    assert run.shares() == pytest.approx(wanted, abs=0.05)
    for first in range(2, 44, 16):  # and so does any stretch of shards
        stretch = {n: c for n, c in run.records.items() if first <= n < first + 16}
        totals = [sum(column) for column in zip(*stretch.values(), strict=True)]
        assert [t / sum(totals) for t in totals] == pytest.approx(wanted, abs=0.12)


def test_within_a_shard_the_sources_are_mixed():
    run = Run([IMAGES, IMAGES], [3, 1])
    run.make(20)
    order = [run.units.source_of(unit) for unit, _ in run.shards[10]]
    assert all(order[n : n + 4].count(1) == 1 for n in range(0, len(order) - 4, 4))


def test_a_small_heavy_source_comes_again_while_the_large_one_is_in_its_first_pass():
    run = Run([Kind(20, written=2000), Kind(20_000, written=2000)], [1, 1])
    run.make(130, keep=2)
    run.check()
    small, large = (walk.cycle.passes for walk in run.plan.walks)
    assert (small > 40, large) == (True, 0)
    assert run.shares()[0] > 0.2


def test_of_a_source_whose_units_are_all_cached_nothing_comes_and_the_others_fill_the_shard():
    run = Run([Kind(20, written=2000), Kind(20_000, written=2000)], [1, 1])
    run.make(30)
    run.check()
    assert run.records[30][0] == 0
    assert run.records[30][1] > 25
    for number in (1, 2):
        run.let_go(number)
    before = max(run.records)
    run.make(16)
    # It is owed nothing for the time when it had nothing to give: no shard is full of it.
    assert 0 < max(run.records[n][0] for n in range(before + 1, before + 17)) <= 18


def test_a_source_that_gives_no_records_takes_no_more_than_its_turn():
    units = Several([Kind(5000), Kind(5000)])
    units.go_on(10**6)
    plan = plan_over(units, [1, 1])
    plan.extend()
    good = bad = 0
    for _ in range(40):
        found = plan.assign()
        asides = tuple(SetAside(u.unit, u.key, "no") for u in found.units if u.key[0] == "1")
        made = {u.unit: (1, 1000) for u in found.units if u.key[0] == "0"}
        size = 1000 * len(made)
        plan.finish(
            found.shard.number,
            Outcome(len(made), size, 0, size, size, 0.0, (), asides),
            sorted(made),
            made,
        )
        good, bad = good + len(made), bad + len(asides)
    assert good == pytest.approx(bad, rel=0.1)


def test_the_first_shard_of_a_source_is_awaited_before_more_is_taken_of_it():
    run = Run([IMAGES, TEXT], [1, 1])
    run.assign()
    assert isinstance(run.assign(), Blocked)
    run.finish(1)
    assert all(isinstance(run.assign(), Assignment) for _ in range(8))


def test_a_source_that_is_not_listed_yet_is_waited_for_unless_its_listing_is_stuck():
    units = Several([Kind(100), Kind(100)])
    units.segments.add(0, 100, 100_000)
    units._sizes += [1000] * 100
    units.segments.mark(0)
    plan = plan_over(units, [1, 1])
    plan.extend(False)
    assert isinstance(plan.assign(), Blocked)
    plan.make_do(1)
    assert isinstance(plan.assign(), Assignment)
    plan.extend(False)  # the other one's listing has ended
    assert isinstance(plan.assign(), Assignment | Blocked)
    plan.finish(1, *_all_of(plan.open[1]))
    assert isinstance(plan.assign(), Assignment)


def _all_of(found: Assignment) -> tuple[Outcome, list[int], dict[int, tuple[int, int]]]:
    made = {u.unit: (1, 1000) for u in found.units}
    size = 1000 * len(made)
    return Outcome(len(made), size, 0, size, size, 0.0), sorted(made), made


def test_other_weights_count_from_the_next_shard_on():
    run = Run([IMAGES, IMAGES], [3, 1])
    run.make(50)
    run.plan.reweigh([1, 3])
    run.make(50)
    assert run.shares(since=52) == pytest.approx([0.25, 0.75], abs=0.03)
    assert run.records[60] == pytest.approx([2, 8], abs=1)


def test_a_source_that_is_left_out_is_not_made_up_for():
    run = Run([IMAGES, IMAGES], [1, 1])
    run.make(10)
    for _ in range(20):
        found = run.plan.assign(without={1})
        run.finish(found.shard.number)
        assert run.records[found.shard.number][1] == 0
    run.make(20)
    assert run.shares(since=31) == pytest.approx([0.5, 0.5], abs=0.05)


def test_without_any_source_nothing_is_planned_and_nothing_is_over():
    run = Run([IMAGES, IMAGES], [1, 1])
    assert isinstance(run.plan.assign(without={0, 1}), Blocked)
    assert run.plan.passes[0] == 0


kinds = st.lists(
    st.builds(
        Kind,
        units=st.integers(0, 25),
        records=st.sampled_from([1, 7, 30]),
        size=st.sampled_from([100, 1000]),
        written=st.sampled_from([50, 1500, 9000]),
    ),
    min_size=2,
    max_size=3,
)


def at_random(run: Run, chance: random.Random, at_once: int, turns: int) -> Shards:
    """Lists, assigns, finishes and restarts in a random order until nothing is left."""
    while True:
        run.units.go_on(chance.randint(0, turns))
        run.plan.extend(run.units.complete)
        found = run.assign() if len(run.plan.open) < at_once else Blocked()
        if not isinstance(found, Assignment):
            if run.plan.open:
                run.finish(chance.choice(sorted(run.plan.open)))
            elif isinstance(found, Exhausted) and run.units.complete:
                run.check()
                return [run.shards[n] for n in sorted(run.shards)]
        if chance.random() < 0.1:
            run.begin_anew()


@settings(deadline=None, max_examples=15)
@given(
    kinds,
    st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=3, max_size=3),
    st.sampled_from([1, 4, 16]),
    st.integers(1, WINDOW),
    st.integers(1, 9),
    st.integers(0, 2**32),
)
def test_shards_are_the_same_whatever_the_timing_and_hold_every_record_once(
    kinds, weights, interleave, at_once, turns, chance
):
    weights = weights[: len(kinds)]
    alone = at_random(Run(kinds, weights, interleave), random.Random(0), 1, 10**6)
    other = Run(kinds, weights, interleave, turns=0)
    assert at_random(other, random.Random(chance), at_once, turns) == alone
    held = Counter((u, o) for shard in other.live.values() for u, os in shard.items() for o in os)
    expected = {
        (number, ordinal)
        for number in range(len(other.units))
        for ordinal in range(other.units.kinds[other.units.source_of(number)].records)
    }
    assert held.keys() == expected


@pytest.mark.parametrize("wait", [False, True])
def test_where_sets_are_to_be_the_same_a_source_that_is_stuck_is_waited_for(wait):
    units = Several([Kind(100), Kind(100)])
    units.segments.add(0, 100, 100_000)
    units._sizes += [1000] * 100
    units.segments.mark(0)
    rules = DatasetRules("train", "g", 1, 1, wait=wait, sources=(SourceRules(), SourceRules()))
    dataset = DatasetState(rules, plan_over(units, [1, 1]))
    dataset.plan.extend(False)
    dataset.listing_stopped("it is down", True, False, 0.0, 1)
    assert (dataset.assign(0.0) is None) == wait
    assert dataset.missing.reason(1) == "it is down"


def test_a_source_that_cannot_be_read_is_left_out_until_a_pause_is_over():
    rules = DatasetRules("train", "g", 1, sources=(SourceRules(), SourceRules()))
    units = Several([Kind(1000), Kind(1000)])
    units.go_on(10**6)
    dataset = DatasetState(rules, plan_over(units, [1, 1]))
    dataset.plan.extend()

    def sources(now: float, down: bool) -> set[int]:
        found = dataset.assign(now)
        assert found is not None
        number = found.shard.number
        tried = dataset.plan.sources_in(number)
        rest = tuple(u for u in found.units if down and u.key[0] == "1")
        made = {u.unit: (1, 1000) for u in found.units if u not in rest}
        size = 1000 * len(made)
        away = ((1, "no route"),) if rest else ()
        outcome = Outcome(len(made), size, 0, size, size, 0.0, rest, unreachable=away)
        dataset.made_of(number, outcome, now)
        dataset.plan.finish(number, outcome, sorted(made), made)
        return tried

    assert sources(0.0, down=True) == {0, 1}
    assert sources(0.5, down=True) == {0}
    assert dataset.missing.reason(1) == "no route"
    assert sources(1.5, down=True) == {0, 1}
    assert sources(2.5, down=False) == {0}
    assert sources(9.0, down=False) == {0, 1}
    assert dataset.missing.reason(1) == ""


@pytest.mark.parametrize("interleave", [1, 16])
def test_a_source_of_few_units_larger_than_a_shard_gives_its_share_all_along(interleave):
    run = Run([Kind(8, records=400), Kind(5000)], [1, 1], interleave)
    run.make(40)
    run.check()
    assert run.shares() == pytest.approx([0.5, 0.5], abs=0.05)
    assert min(map(sum, run.records.values())) >= 30  # and no shard is nearly empty
    if interleave > 1:
        assert sum(counts[0] > 10 for counts in run.records.values()) > 35


@pytest.mark.parametrize("seed", range(8))
def test_a_mixture_that_lets_its_open_shards_go_hands_out_every_unit_all_the_same(seed):
    """As a start does that goes on with a walk of which another has made shards meanwhile."""
    chance = random.Random(seed)
    kinds = [
        Kind(chance.choice([3, 40]), chance.choice([1, 8, 30]), chance.choice([1000, 9000]))
        for _ in range(3)
    ]
    run = Run(kinds, [1, 1, 3])
    opened = [found.shard.number for _ in range(3) if isinstance(found := run.assign(), Assignment)]
    run.finish(opened[0])
    run.plan.overtake(run.plan.next_number + 1)
    run.plan.resume(run.plan.let_go())
    run.begin_anew()
    while isinstance(found := run.assign(), Assignment):
        run.finish(found.shard.number)
    assert isinstance(found, Exhausted)
    made = Counter(
        (unit, ordinal)
        for held in run.live.values()
        for unit, ordinals in held.items()
        for ordinal in ordinals
    )
    assert set(made.values()) == {1}
    assert len(made) == sum(
        run.units.kinds[run.units.source_of(unit)].records for unit in range(len(run.units))
    )
