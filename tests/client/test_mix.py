"""How many records of each dataset a mixture's epoch reads, and which: against a model of each record."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cachecd_client.mix import Mix, Share, length

NAMES = ("a", "b", "c")
WINDOW = 4000
PER_RECORD = 100  # bytes


def share(name, weight, sizes):
    """A dataset of files by number: so many records each."""
    files = np.array(sorted(sizes), np.int64)
    records = np.array([sizes[number] for number in files.tolist()], np.int64)
    return Share(name, weight, files, records, PER_RECORD * int(records.sum()))


def records_of(stages, shares):
    """{dataset: [(file's number, record)]} of each stage."""
    files = [(of.name, int(number)) for of in shares for number in of.files]
    found = []
    for stage in stages:
        records = {of.name: [] for of in shares}
        for file, first, count in stage.tolist():
            name, number = files[file]
            records[name] += [(number, record) for record in range(first, first + count)]
        found.append(records)
    return found


class Model:
    """One dataset: its files, and which of their records were read in the present sweep."""

    def __init__(self):
        self.sizes = {1: 5}  # by number
        self.seen = set()

    @property
    def every(self):
        return {(n, record) for n, size in self.sizes.items() for record in range(size)}

    def go(self, count):
        for number in sorted(self.sizes)[:count]:
            if sum(self.sizes.values()) > self.sizes[number]:
                del self.sizes[number]
        self.seen = {record for record in self.seen if record[0] in self.sizes}

    def read(self, stages):
        """An epoch's: nothing comes again before all others have, in the sweep and in the epoch."""
        every, epoch = self.every, set()
        for stage in filter(None, stages):
            assert len(set(stage)) == len(stage)
            for seen in (self.seen, epoch):
                if seen >= every:
                    seen.clear()
                assert not seen & set(stage)
                seen.update(stage)


weighted = st.sampled_from([0.0, 0.01, 0.1, 1 / 3, 0.5, 1.0])


class Mixes(RuleBasedStateMachine):
    """Files of three datasets come and go by themselves; weights change; epochs take some of all."""

    def __init__(self):
        super().__init__()
        self.mix = Mix()
        self.models = {name: Model() for name in NAMES}
        self.weights = dict.fromkeys(NAMES, 1 / 3)
        self.due = dict.fromkeys(NAMES, 0.0)
        self.given = Counter()
        self.within = 1 + 1e-6

    @rule(name=st.sampled_from(NAMES), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4))
    def files_come(self, name, sizes):
        for size in sizes:
            self.models[name].sizes[max(self.models[name].sizes) + 1] = size

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def files_go(self, name, count):
        self.models[name].go(count)

    @rule(weights=st.tuples(weighted, weighted, weighted).filter(any))
    def weights_change(self, weights):
        if 0 in weights:
            self.within = 2
        self.weights = {n: weight / sum(weights) for n, weight in zip(NAMES, weights, strict=True)}

    @rule(steps=st.integers(1, 150), window=st.sampled_from([None, WINDOW]), again=st.booleans())
    def an_epoch(self, steps, window, again):
        self.read(steps, window, again)

    @rule(window=st.sampled_from([None, WINDOW]))
    def an_epoch_of_its_own_length(self, window):
        sets = [(sum(self.models[n].sizes.values()), w) for n, w in self.weights.items() if w]
        if wanted := length(sets):
            found = self.read(wanted, window, again=False)
            assert max(Counter(record for stage in found for record in stage).values()) == 1

    def read(self, wanted, window, again):
        if again:
            self.mix = Mix.of_state(self.mix.state())
        shares = [share(n, self.weights[n], self.models[n].sizes) for n in NAMES]
        stages, self.mix = self.mix.take(shares, wanted, window)
        found = records_of(stages, shares)
        assert sum(len(records) for stage in found for records in stage.values()) == wanted
        for name in NAMES:
            self.models[name].read([stage[name] for stage in found])
            self.given[name] += sum(len(stage[name]) for stage in found)
            self.due[name] += self.weights[name] * wanted
            assert abs(self.given[name] - self.due[name]) < self.within
        return [[(n, *record) for n in NAMES for record in stage[n]] for stage in found]


TestMixes = Mixes.TestCase
TestMixes.settings = settings(max_examples=30, stateful_step_count=20)


def counts(stage, shares):
    """How many records of each dataset."""
    return {name: len(records) for name, records in records_of([stage], shares)[0].items()}


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 300), min_size=5, max_size=5),
    epochs=st.lists(st.integers(1, 1000), min_size=1, max_size=5),
)
@settings(max_examples=20)
def test_every_stage_has_of_each_dataset_its_share(weights, sizes, epochs):
    whole = sum(weights)
    shares = [share(str(i), w / whole, {1: sizes[i]}) for i, w in enumerate(weights)]
    mix = Mix()
    for wanted in epochs:
        stages, mix = mix.take(shares, wanted)
        for stage in stages:
            found = counts(stage, shares)
            for one in shares:
                # Rounded at its beginning and at its end, and so is the epoch.
                assert abs(found[one.name] - one.weight * sum(found.values())) <= 3


def test_what_is_larger_than_the_window_comes_in_stages_of_whole_files_of_which_two_fit():
    large = share("large", 0.9, dict.fromkeys(range(1, 101), 100))
    small = share("small", 0.1, dict.fromkeys(range(1, 6), 100))
    window = 300_000  # of a million bytes
    stages, _ = Mix().take([large, small], 10_000, window)
    touched = [set(stage[:, 0].tolist()) for stage in stages]
    assert len(stages) > 5
    for this, following in pairwise(touched):
        assert 100 * PER_RECORD * len(this | following) <= window
    assert [counts(stage, [large, small])["small"] for stage in stages[:3]] == pytest.approx(
        [0.1 * stage[:, 2].sum() for stage in stages[:3]], abs=2
    )
    pieces = Counter(file for stage in stages for file in stage[:, 0].tolist() if file < 100)
    assert max(pieces.values()) <= 2, "of a large dataset each file is read in one or two stages"


def test_a_small_dataset_that_is_read_a_thousand_times_costs_no_slice_of_all_files_each_time():
    large = share("large", 0.5, dict.fromkeys(range(1, 2001), 50))
    small = share("small", 0.5, {1: 40})
    stages, after = Mix().take([large, small], 80_000)
    assert len(stages) == 1000
    assert sum(map(len, stages)) < 5 * 1000
    (stage,), _ = after.take([large, small], 60)
    assert len(stage) > 30, "little of each file where it is but once"


def test_an_epoch_of_its_own_length_is_not_a_record_short_for_a_rounded_weight():
    for percent in range(1, 100):
        assert (
            length([(percent * 10, percent / 100), ((100 - percent) * 10, 1 - percent / 100)])
            == 1000
        )


def test_nothing_comes_twice_of_a_dataset_that_is_owed_a_record_and_read_to_its_end():
    shares = [share("a", 0.5, {1: 10}), share("b", 0.5, {1: 15})]
    (stage,), after = Mix(owed={"a": 0.6, "b": -0.6}).take(shares, 20)
    assert counts(stage, shares) == {"a": 10, "b": 10}
    assert after.owed == pytest.approx({"a": 0.6, "b": -0.6})


@pytest.mark.parametrize(
    "state", [{}, {"sweeps": 3, "owed": {}}, {"sweeps": {}, "owed": {"a": "b"}}]
)
def test_what_is_no_state_of_a_mix_is_an_error(state):
    with pytest.raises((KeyError, ValueError, TypeError, AttributeError)):
        Mix.of_state(state)
