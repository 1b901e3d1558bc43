"""Which records come next where an epoch is so many records: against a model that knows each record."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cachecd_client.loader.sweep import Sweep
from tests.core.shards import LONG


def records_of(stages, files):
    """[(file's number, record)] of each stage."""
    return [
        [
            (int(files[file]), record)
            for file, first, count in stage.tolist()
            for record in range(first, first + count)
        ]
        for stage in stages
    ]


class Sweeps(RuleBasedStateMachine):
    """Files come at the end and go at the beginning, as a cache grows and rotates, and some are away for a
    while, as those that are verified; epochs take some of what is there."""

    def __init__(self):
        super().__init__()
        self.sweep = Sweep()
        self.sizes = {1: 5}  # by number
        self.away = set()
        self.seen = Counter()  # of the present sweep, of files that are there or among these

    @rule(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4))
    def files_come(self, sizes):
        for size in sizes:
            self.sizes[max(self.sizes) + 1] = size

    @precondition(lambda self: len(self.sizes) > 1)
    @rule(data=st.data())
    def files_go(self, data):
        for number in sorted(self.sizes)[: data.draw(st.integers(1, len(self.sizes) - 1))]:
            if sum(self.there().values()) > self.there().get(number, 0):
                del self.sizes[number]
        self.away &= self.sizes.keys()
        self.forget(lambda number: number in self.sizes)

    @rule(data=st.data())
    def one_is_away(self, data):
        number = data.draw(st.sampled_from(sorted(self.sizes)))
        if sum(self.there().values()) > self.there().get(number, 0):
            self.away.add(number)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def one_comes_back(self, data):
        self.away.remove(data.draw(st.sampled_from(sorted(self.away))))

    def there(self):
        return {number: size for number, size in self.sizes.items() if number not in self.away}

    def forget(self, kept):
        self.seen = Counter({key: n for key, n in self.seen.items() if kept(key[0])})

    @rule(wanted=st.integers(1, 150), whole_files=st.booleans(), again=st.booleans())
    def an_epoch(self, wanted, whole_files, again):
        there = self.there()
        files = np.array(sorted(there), np.int64)
        sizes = np.array([there[number] for number in files.tolist()], np.int64)
        self.forget(lambda number: min(there) <= number <= max(there))
        if again:
            self.sweep = Sweep.of_state(self.sweep.state())
        stages, after = self.sweep.take(files, sizes, wanted, whole_files=whole_files)
        found = records_of(stages, files)
        assert sum(map(len, found)) == wanted
        every = {(n, record) for n, size in there.items() for record in range(size)}
        for place, stage in enumerate(found):
            if place or not every - set(self.seen):  # a new sweep
                assert set(self.seen) >= every, "nothing comes again before all was read"
                self.seen.clear()
            assert len(set(stage)) == len(stage)
            assert set(stage) <= every - set(self.seen), "what was read does not come again"
            self.seen.update(stage)
        assert after.number - self.sweep.number in (len(found) - 1, len(found))
        self.sweep = after

    @invariant()
    def something_is_there(self):
        assert sum(self.there().values())


TestSweeps = Sweeps.TestCase
TestSweeps.settings = settings(max_examples=40 if LONG else 20, stateful_step_count=20)


def test_another_generation_has_other_records_under_the_same_numbers():
    files, records = np.array([1, 2, 3]), np.full(3, 100)
    _, sweep = Sweep().of("g").take(files, records, 240)
    assert sweep.of("g") is sweep
    (stage,), other = sweep.of("h").take(files, records, 300)
    assert stage.tolist() == [[0, 0, 100], [1, 0, 100], [2, 0, 100]]
    assert Sweep.of_state(other.state()).generation == "h"
