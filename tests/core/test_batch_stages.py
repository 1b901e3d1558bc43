"""BatchReader over slices of files, in stages: what is read, in which order, and what is refused."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client._core import BatchReader, count_records
from tests.core.shards import FEATURES, LONG, example, labels, write, write_files

SIZES = [40, 0, 1, 56, 17, 30]
STARTS = [sum(SIZES[:file]) for file in range(len(SIZES))]

slices = st.integers(0, len(SIZES) - 1).flatmap(
    lambda file: st.tuples(st.just(file), st.integers(0, SIZES[file])).flatmap(
        lambda at: st.tuples(st.just(at[0]), st.just(at[1]), st.integers(0, SIZES[at[0]] - at[1]))
    )
)
stages = st.lists(st.lists(slices, max_size=8), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("stages"), SIZES, STARTS)


def table(rows):
    return np.array(rows, np.uint64).reshape(-1, 3)


def content(rows):
    return [STARTS[file] + i for file, first, count in rows for i in range(first, first + count)]


def read(files, of, **options):
    return labels(
        BatchReader(files, FEATURES, batch_size=1, stages=[table(s) for s in of], **options)
    )


@pytest.mark.parametrize("window", [0, 3000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_one_stage_of_all_files_is_the_order_without_stages(files, window, shuffle):
    options = {"seed": 5, "shuffle": shuffle, "window": window}
    whole = [[(file, 0, size) for file, size in enumerate(SIZES)]]
    plain = labels(BatchReader(files, FEATURES, batch_size=1, **options))
    assert read(files, whole, **options) == plain


@settings(max_examples=40 if LONG else 20)
@given(of=stages, seed=st.integers(0, 2**64 - 1), window=st.sampled_from([0, 2000, 6000]))
def test_each_stage_has_its_slices_records_once_and_stages_follow_one_another(
    files, of, seed, window
):
    found = read(files, of, seed=seed, window=window)
    at = 0
    for rows in of:
        wanted = content(rows)
        assert Counter(found[at : at + len(wanted)]) == Counter(wanted)
        at += len(wanted)
    assert at == len(found)
    assert read(files, of, shuffle=False, window=window) == [
        n for rows in of for n in content(rows)
    ]


@settings(max_examples=25 if LONG else 8)
@given(
    of=stages, window=st.sampled_from([0, 2000]), world=st.integers(1, 4), start=st.integers(0, 9)
)
def test_ranks_divide_it_and_a_pass_begins_anywhere(files, of, window, world, start):
    every = read(files, of, seed=3, window=window)
    for rank in range(world):
        mine = every[rank::world][: len(every) // world]
        options = {"seed": 3, "window": window, "rank": rank, "world": world}
        begin = min(start, len(mine))
        assert read(files, of, start=begin, **options) == mine[begin:]


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"stages": [table([(6, 0, 1)])]}, ValueError, "file 6 of 6"),
        ({"stages": [table([(2**40, 0, 1)])]}, ValueError, "no such file"),
        ({"stages": [table([(0, 0, 41)])]}, ValueError, "41 records from 0 on, file 0 has 40"),
        ({"stages": [table([(0, 1, 2**64 - 1)])]}, ValueError, "file 0 has 40"),
        ({"stages": []}, ValueError, "expected one at least"),
        ({"stages": [np.zeros((1, 2), np.uint64)]}, TypeError, "stages: expected arrays"),
        ({"datasets": np.zeros(5, np.int64)}, ValueError, "datasets: 5 numbers for 6 files"),
        ({"datasets": [1, 2]}, TypeError, "expected an array int64"),
    ],
)
def test_stages_and_datasets_that_cannot_be_are_refused(files, options, error, why):
    with pytest.raises(error, match=why):
        BatchReader(files, FEATURES, batch_size=1, **options)


def test_records_are_counted_by_sidecar_offsets_or_a_walk(files, tmp_path: Path):
    assert count_records(files).tolist() == SIZES
    assert count_records([(files[0][0], np.array([0], np.uint64)), files[4]]).tolist() == [1, 17]
    assert count_records([]).tolist() == []
    with pytest.raises(FileNotFoundError):
        count_records([(str(tmp_path / "none"), None)])


def test_records_of_a_file_that_is_gone_are_counted_by_the_total(tmp_path):
    """Those of one file exactly; those of several in equal parts."""
    files = []
    for number, size in enumerate([5, 7, 9]):
        path = write(tmp_path / str(number), [example(i) for i in range(size)])
        files.append((str(path), None))
    totals = 21, sum(os.path.getsize(path) for path, _ in files)
    for gone, counts in ((1, [5, 7, 9]), (2, [5, 8, 8])):
        os.unlink(files[gone][0])
        os.unlink(files[gone][0] + ".idx")
        assert count_records(files, totals).tolist() == counts
    with pytest.raises(FileNotFoundError):
        count_records(files)
