"""BatchReader over several datasets: which comes next, against a plain reference of the draw."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client._core import BatchReader, drawn, draws_until
from tests.core.shards import FEATURES, LONG, labels, write_files

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
WHOLE = 2**62

# Dataset d has the files 2 d and 2 d + 1, whose labels begin at 1000 d.
SIZES = [40, 20, 56, 1, 5, 0]
STARTS = [0, 40, 1000, 1056, 2000, 2005]


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def reference(bounds: list[int], key: int, position: int) -> int:
    base = mix((key + GOLDEN) & MASK)
    value = mix((base + GOLDEN * position) & MASK) >> 2
    return next(dataset for dataset, bound in enumerate(bounds) if value < bound)


def bounds_of(*weights: float) -> list[int]:
    below = list(accumulate(weights))
    return [round(WHOLE * part / below[-1]) for part in below[:-1]] + [WHOLE]


weights = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)
keys = st.integers(0, MASK)


def sequence(bounds: list[int], key: int, positions: int) -> list[int]:
    return [reference(bounds, key, position) for position in range(positions)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("mixtures"), SIZES, STARTS)


def stage(*rows):
    return np.array(rows, np.uint64).reshape(-1, 3)


def whole(dataset: int):
    return stage(*[(file, 0, SIZES[file]) for file in (2 * dataset, 2 * dataset + 1)])


def mixture(bounds, key, positions, passes, windows=(0, 0, 0)):
    parts = [(windows[dataset], [whole(dataset)] * count) for dataset, count in enumerate(passes)]
    return bounds, key, positions, parts


def read(files, mixture, **options):
    return labels(BatchReader(files, FEATURES, batch_size=1, mixture=mixture, **options))


@given(weights, keys, st.integers(0, 3000))
def test_drawn_counts_agree_with_a_plain_reference(of, key, positions):
    bounds = bounds_of(*of)
    expected = Counter(sequence(bounds, key, positions))
    assert drawn(bounds, key, positions) == [expected[d] for d in range(len(bounds))]


@given(weights, keys, st.data())
def test_draws_end_with_the_first_dataset_that_is_through(of, key, data):
    bounds = bounds_of(*of)
    records = data.draw(st.lists(st.integers(0, 50), min_size=len(of), max_size=len(of)))
    until = draws_until(bounds, key, records)
    counts = drawn(bounds, key, until)
    assert all(count <= most for count, most in zip(counts, records, strict=True))
    assert any(count == most for count, most in zip(counts, records, strict=True))
    if until:
        last = reference(bounds, key, until - 1)
        assert counts[last] == records[last] or 0 in records


def test_shares_are_those_of_the_weights():
    """Of a million draws, within five standard deviations; neighbours are independent."""
    bounds, n = bounds_of(0.7, 0.25, 0.05), 1_000_000
    for part, count in zip((0.7, 0.25, 0.05), drawn(bounds, 17, n), strict=True):
        assert abs(count - n * part) < 5 * (n * part * (1 - part)) ** 0.5
    found = sequence(bounds, 17, 100_000)
    pairs = Counter(pairwise(found))
    for one, other in pairs:
        expected = 99_999 * [0.7, 0.25, 0.05][one] * [0.7, 0.25, 0.05][other]
        assert abs(pairs[one, other] - expected) < 6 * expected**0.5


@settings(max_examples=30 if LONG else 12)
@given(
    of=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    key=keys,
    window=st.sampled_from([0, 2500]),
    threads=st.integers(1, 3),
)
def test_each_position_has_the_next_record_of_its_dataset(files, of, key, window, threads):
    bounds, positions = bounds_of(*of), 300
    passes = [
        -(-count // max(1, sum(SIZES[2 * d : 2 * d + 2])))
        for d, count in enumerate(drawn(bounds, key, positions))
    ]
    given_ = mixture(bounds, key, positions, passes, [window] * 3)
    options = {"seed": 5, "window": 3 * window, "threads": threads}
    found = read(files, given_, **options)
    assert [label // 1000 for label in found] == sequence(bounds, key, positions)
    for dataset in range(3):
        own = [label for label in found if label // 1000 == dataset]
        records = sum(SIZES[2 * dataset : 2 * dataset + 2])
        for at in range(0, len(own), records):  # no record again before the pass is over
            assert len(set(own[at : at + records])) == len(own[at : at + records])
        alone = bounds_of(*(float(d == dataset) for d in range(3)))
        if passes[dataset]:
            every = mixture(alone, 0, records * passes[dataset], passes, [window] * 3)
            assert own == read(files, every, **options)[: len(own)]


@settings(max_examples=25 if LONG else 10)
@given(
    key=keys, world=st.integers(1, 4), start=st.integers(0, 60), window=st.sampled_from([0, 2500])
)
def test_ranks_divide_a_mixture_and_resume_at_any_batch(files, key, world, start, window):
    given_ = mixture(bounds_of(1, 2, 3), key, 600, [4, 6, 90], [window] * 3)
    every = read(files, given_, window=3 * window)
    for rank in range(world):
        mine = every[rank::world][: len(every) // world]
        options = {"rank": rank, "world": world, "window": 3 * window}
        assert read(files, given_, start=2 * start, **options) == mine[2 * start :]


@pytest.mark.parametrize(
    ("given_", "error", "why"),
    [
        (((2**61,), 0, 5, [(0, [whole(0)])]), ValueError, "bounds of a draw"),
        (((WHOLE,), 0, 5, []), ValueError, "1 weights for 0 datasets"),
        (
            ((WHOLE,), 0, 61, [(0, [whole(0)])]),
            ValueError,
            "61 records are drawn from dataset 0, it has 60",
        ),
        (((WHOLE,), 0, 5, [(0, [stage((9, 0, 1))])]), ValueError, "file 9 of 6"),
        (((WHOLE,), 0, 5), TypeError, "mixture: expected"),
        (((WHOLE,), 0, 5, [whole(0)]), TypeError, r"\(window, stages\) parts"),
    ],
)  # fmt: skip
def test_mixtures_that_cannot_be_are_refused(files, given_, error, why):
    with pytest.raises(error, match=why):
        BatchReader(files, FEATURES, batch_size=1, mixture=given_)
