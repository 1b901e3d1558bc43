"""The shards of a dataset: every figure that is kept is the sum that it stands for."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cachecd.live import LiveShards
from cachecd.model import Ranges, Shard, ShardId
from cachecd.shardtable import ROW, ShardSet, Tally, ranges_of

GENERATIONS = ("old", "new", "never used")
FLAGS = ("retired", "barred", "verifying", "unlinking", "read", "released")
NUMBERS = st.integers(1, 15)  # few, so that things happen to the same ones


def numbers_of(named: Ranges) -> set[int]:
    return {number for first, last in named for number in range(first, last + 1)}


def set_of(shards: list[Shard]) -> ShardSet:
    named = ranges_of(np.array([s.id.number for s in shards], np.int64))
    return ShardSet(named, sum(s.records for s in shards), sum(s.data_bytes for s in shards))


def shard(number: int, generation: str = "new", data: int = 10, allocated: int = 16) -> Shard:
    return Shard(ShardId("train", number), generation, number, data, allocated)


@dataclass
class Naive:
    """A shard as one would write it down first."""

    shard: Shard
    flags: set[str] = field(default_factory=set)
    delivered: int = 0

    @property
    def served(self) -> bool:
        return not self.flags & {"retired", "barred", "verifying"}

    @property
    def doomed(self) -> bool:
        return bool(self.flags & {"retired", "barred"}) and not self.flags & {
            "verifying",
            "unlinking",
        }


class Shards(RuleBasedStateMachine):
    """LiveShards beside a dict of what it stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.live = LiveShards("train")
        self.naive: dict[int, Naive] = {}
        self.leases: dict[str, Ranges] = {}

    def _named(self, number: int) -> bool:
        return any(number in numbers_of(named) for named in self.leases.values())

    def _served(self, generation: str | None = None) -> list[Shard]:
        return [
            one.shard
            for _, one in sorted(self.naive.items())
            if one.served and generation in (None, one.shard.generation)
        ]

    @initialize(numbers=st.sets(NUMBERS), held=st.sets(NUMBERS))
    def found_at_a_start(self, numbers: set[int], held: set[int]) -> None:
        shards = [shard(n, GENERATIONS[n % 2], n, 2 * n) for n in sorted(numbers)]
        rows = [(s.id.number, s.records, s.data_bytes, s.allocated, n % 2, 9, 0, 0, 0)
                for s, n in zip(shards, sorted(numbers), strict=True)]  # fmt: skip
        self.live.add_all(GENERATIONS, np.array(rows, ROW))
        self.naive = {s.id.number: Naive(s) for s in shards}
        self.hold("a", held)

    @rule(
        number=NUMBERS,
        generation=st.sampled_from(GENERATIONS[:2]),
        data=st.integers(0, 50),
        retired=st.booleans(),
        barred=st.booleans(),
    )
    def add(self, number: int, generation: str, data: int, retired: bool, barred: bool) -> None:
        if number in self.naive:
            return
        one = shard(number, generation, data, data + 6)
        self.live.add(one, retired, barred)
        flags = {"retired"} if retired else set()
        self.naive[number] = Naive(one, flags | ({"barred", "released"} if barred else set()))

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        if self.naive.pop(number, None):
            self.live.remove(number)
        else:
            with pytest.raises(KeyError):
                self.live.remove(number)

    @rule(number=NUMBERS, flag=st.sampled_from(FLAGS), value=st.booleans())
    def change(self, number: int, flag: str, value: bool) -> None:
        if number in self.naive:
            setattr(self.live[number], flag, value)
            (set.add if value else set.discard)(self.naive[number].flags, flag)

    @rule(numbers=st.sets(NUMBERS), and_unlink=st.booleans())
    def retire(self, numbers: set[int], and_unlink: bool) -> None:
        there = sorted(numbers & self.naive.keys())
        allocated = sum(self.naive[n].shard.allocated for n in there)
        assert self.live.retire(np.array(there, np.int64)) == allocated
        for number in there:
            self.naive[number].flags.add("retired")
        if and_unlink:
            self.unlink()

    @rule(lease=st.sampled_from("abc"), numbers=st.sets(NUMBERS))
    def hold(self, lease: str, numbers: set[int]) -> None:
        if lease in self.leases:
            return
        self.leases[lease] = named = ranges_of(np.array(sorted(numbers), np.int64))
        self.live.hold(lease, named)

    @rule(numbers=st.sets(NUMBERS), share=st.sampled_from([0, 1, 499, 501, 1000, 10**6]))
    def deliver(self, numbers: set[int], share: int) -> None:
        ranges = ranges_of(np.array(sorted(numbers), np.int64))
        self.live.deliver(ranges, [share] * len(ranges))
        for number, one in self.naive.items():
            one.delivered = min(one.delivered + share * (number in numbers), 1000)
            if one.delivered == 1000:
                one.flags.add("read")

    @rule()
    def what_was_delivered_is_found_at_the_next_start(self) -> None:
        again = LiveShards("train")
        for number, one in sorted(self.naive.items()):
            again.add(one.shard)
            assert number in again
        again.deliver_again(json.loads(json.dumps(self.live.delivered)))
        for number, one in self.naive.items():
            assert again[number].read == (one.delivered == 1000)
        for number, one in self.naive.items():
            eighths = one.delivered * 8 // 1000
            rest = 1000 - eighths * 125
            again.deliver(((number, number),), (rest - 1,))
            assert again[number].read == (one.delivered == 1000), "rounded down"
            again.deliver(((number, number),), (1,))
            assert again[number].read, "and by an eighth at most"

    @rule(lease=st.sampled_from("abc"))
    def let_go(self, lease: str) -> None:
        self.leases.pop(lease, None)
        self.live.let_go(lease)

    @rule()
    def unlink(self) -> None:
        loose = [n for n, one in sorted(self.naive.items()) if one.doomed and not self._named(n)]
        assert self.live.unlink() == loose
        for number in loose:
            self.naive[number].flags.add("unlinking")

    @rule(generation=st.sampled_from(GENERATIONS))
    def choose(self, generation: str) -> None:
        served = self._served(generation)
        assert self.live.served_set(generation) == set_of(served)
        assert self.live.set_of(np.array([s.id.number for s in served], np.int64)) == set_of(served)

    @rule(
        generation=st.sampled_from(GENERATIONS),
        gaps=st.dictionaries(NUMBERS, st.integers(0, 50), max_size=4),
        end=st.none() | NUMBERS,
        before=st.integers(0, 50),
        enough=st.integers(-5, 200),
    )
    def walk(
        self, generation: str, gaps: dict[int, int], end: int | None, before: int, enough: int
    ) -> None:
        there = {n: one for n, one in self.naive.items() if one.shard.generation == generation}
        gaps = {n: size for n, size in gaps.items() if n not in there}
        chosen: list[int] = []
        total, through = before, before
        for number in sorted(there.keys() | gaps.keys()):
            if end is not None and number >= end:
                break
            size = gaps[number] if number in gaps else there[number].shard.data_bytes
            if through < enough or not chosen:
                through += size
                if number in there and there[number].served:
                    chosen.append(number)
            else:
                through = enough  # nothing more is chosen
            total += size
        found = self.live.walk(generation, gaps, end, before)
        assert found.data_bytes == total
        assert found.first(enough).tolist() == chosen

    def _oldest(self, generation: str, most: int, keep: int, must: int = 0) -> list[int]:
        chosen: list[int] = []
        stays = sum(s.data_bytes for s in self._served(generation))
        for one in self._served(generation)[:-1]:
            most -= one.allocated
            stays -= one.data_bytes
            read = "read" in self.naive[one.id.number].flags
            if most < 0 or stays < keep or not (read or must > 0):
                break
            must -= one.allocated
            chosen.append(one.id.number)
        return chosen

    @rule(
        generation=st.sampled_from(GENERATIONS[:2]),
        most=st.integers(-5, 300),
        keep=st.integers(0, 300),
        shards=st.integers(0, 6),
        must=st.integers(-5, 300),
    )
    def rotate(self, generation: str, most: int, keep: int, shards: int, must: int) -> None:
        served = self._served(generation)
        exactly = sum(s.allocated for s in served[:shards])
        rest = sum(s.data_bytes for s in served[shards:])
        for bounds in ((most, keep), (exactly, 0), (exactly - 1, 0), (999, rest), (999, rest + 1)):
            assert self.live.oldest(generation, *bounds).tolist() == self._oldest(
                generation, *bounds
            )
            assert self.live.oldest(generation, *bounds, must).tolist() == self._oldest(
                generation, *bounds, must
            )

    @invariant()
    def every_figure_is_its_sum(self) -> None:
        live, naive = self.live, self.naive
        assert list(live) == sorted(naive)
        assert len(live) == len(naive)
        for number, one in naive.items():
            assert live[number].shard == one.shard
            assert {flag for flag in FLAGS if getattr(live[number], flag)} == one.flags
            assert (live[number].served, live[number].doomed) == (one.served, one.doomed)
        for generation in (None, *GENERATIONS):
            served = self._served(generation)
            assert live.served(generation) == Tally(
                len(served), sum(s.records for s in served), sum(s.data_bytes for s in served)
            )
        for generation in GENERATIONS:
            others = [s.id.number for s in self._served() if s.generation != generation]
            assert live.superseded(generation).tolist() == others
            others = [
                s.id.number for s in self._served() if s.generation not in (generation, "new")
            ]
            assert live.superseded(generation, "new").tolist() == others
            suspects = [n for n, one in naive.items() if "verifying" in one.flags]
            suspects = [n for n in suspects if naive[n].shard.generation == generation]
            assert live.verifying(generation) == min(suspects, default=None)
        with_flag = {flag: sum(flag in one.flags for one in naive.values()) for flag in FLAGS}
        assert live.num_retired == with_flag["retired"]
        assert live.num_barred == with_flag["barred"]
        assert live.unsettled == bool(with_flag["unlinking"] or with_flag["verifying"])
        assert live.any_doomed == any(one.doomed for one in naive.values())
        assert live.first == min(naive, default=None)
        for generation in GENERATIONS:
            served = self._served(generation)
            assert live.most_allocated(generation) == max((s.allocated for s in served), default=0)
            assert live.oldest_allocated(generation) == sum(s.allocated for s in served[:1])
        for generation in (None, *GENERATIONS):
            mine = [o for o in naive.values() if generation in (None, o.shard.generation)]
            retired = [o for o in mine if "retired" in o.flags]
            sound = [o for o in retired if "barred" not in o.flags]
            total = sum(o.shard.allocated for o in retired)
            assert live.retired_allocated(generation) == total
            total = sum(o.shard.allocated for o in sound)
            assert live.retired_allocated(generation, but_barred=True) == total
            if generation:
                assert live.data_bytes(generation) == sum(o.shard.data_bytes for o in mine)
        held = set().union(*map(numbers_of, self.leases.values()))
        to_go = {n: o for n, o in naive.items() if o.doomed or "unlinking" in o.flags}
        going = sum(o.shard.allocated for n, o in to_go.items() if n not in held)
        assert live.going_allocated == going
        assert live.held_allocated == sum(o.shard.allocated for o in to_go.values()) - going
        assert live.unheld(np.array([*live], np.int64)).tolist() == sorted(naive.keys() - held)
        for named in self.leases.values():
            numbers = numbers_of(named)
            retired = [n for n in numbers & naive.keys() if "retired" in naive[n].flags]
            assert live.retired_bytes(named) == sum(naive[n].shard.allocated for n in retired)
            doomed = any(naive[n].doomed for n in numbers & naive.keys())
            assert live.any_doomed_in(named) == doomed
            assert live.has_all(named) == (numbers <= naive.keys())


TestShards = Shards.TestCase
TestShards.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_a_number_is_added_once():
    live = LiveShards("train")
    live.add(shard(3))
    with pytest.raises(AssertionError, match="twice"):
        live.add(shard(3))


def test_ranges_are_as_few_as_can_be():
    assert ranges_of(np.array([1, 2, 3, 7, 9, 10])) == ((1, 3), (7, 7), (9, 10))
    assert ranges_of(np.zeros(0, np.int64)) == ()
    assert LiveShards("train").served_set("new") == ShardSet((), 0, 0)


def test_what_was_delivered_of_a_large_cache_is_saved_in_little_and_only_anew_when_it_changes():
    count = 100_000
    live = LiveShards("train")
    rows = np.zeros(count, ROW)
    rows["number"] = np.arange(1, count + 1)
    live.add_all(["new"], rows)
    read = np.sort(np.random.default_rng(1).permutation(count)[: count // 2]) + 1
    began = time.thread_time()  # not what others take of the processor; 0.03 s
    live.deliver(ranges_of(read), [1000] * len(ranges_of(read)))
    saved = live.delivered
    assert time.thread_time() - began < 0.3
    assert len(json.dumps(saved)) < 24_000
    live.add(shard(count + 1))
    live.remove(1)
    assert live.delivered is saved, "it is saved with each shard that comes and goes"
    again = LiveShards("train")
    again.add_all(["new"], rows)
    again.deliver_again(saved)
    assert [number for number in again if again[number].read] == read.tolist()


def test_a_number_that_has_another_shard_is_not_taken_for_read():
    live = LiveShards("train")
    live.add(shard(1))
    live.deliver(((1, 1),), (1000,))
    assert live.delivered
    live.remove(1)
    live.add(shard(1))
    assert not live.delivered


def test_of_shares_that_no_few_bytes_hold_what_was_delivered_whole_is_kept():
    count = 150_000
    live = LiveShards("train")
    rows = np.zeros(count, ROW)
    rows["number"] = np.arange(count) + 10_000
    rows["number"][:500] = 2 * np.arange(500)  # gaps
    live.add_all(["new"], rows)
    shares = np.random.default_rng(1).integers(0, 5, count) * 250
    live.deliver([(n, n) for n in rows["number"].tolist()], shares.tolist())
    assert len(json.dumps(live.delivered)) < 40_000
    again = LiveShards("train")
    again.add_all(["new"], rows)
    again.deliver_again(live.delivered)
    were = [number for number, share in zip(live, shares.tolist(), strict=True) if share == 1000]
    kept = [number for number in again if again[number].read]
    assert len(kept) > 20_000
    assert kept == were[: len(kept)], "the oldest, and none that was not read"
