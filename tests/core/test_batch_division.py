"""BatchReader: which of a rank's records make which of its batches, against a model of lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client._core import BatchReader
from tests.core.shards import FEATURES, batches, example, write

N = 60
PADDING = None

Rows = list[list[int | None]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("division") / "a", [example(i) for i in range(N)])
    return str(path), None


def model(records: int, world: int, batch_size: int, drop_last: bool, pad_last: bool) -> list[Rows]:
    """Each rank's batches; ValueError if each record cannot come once, in no empty batch."""
    shares = [list(range(records))[rank::world] for rank in range(world)]
    if drop_last:
        whole = records // world // batch_size * batch_size
        shares = [share[:whole] for share in shares]
    ranks: list[Rows] = [
        [share[at : at + batch_size] for at in range(0, len(share), batch_size)] for share in shares
    ]
    steps = max(len(found) for found in ranks)
    for found in ranks:
        if pad_last:
            found += [[] for _ in range(steps - len(found))]
            for batch in found:
                batch += [PADDING] * (batch_size - len(batch))
        elif len(found) < steps:
            if not found or len(found[-1]) < 2:
                raise ValueError("a rank has no record for its last batch")
            found.append([found[-1].pop()])
    return ranks


def reader(file, records, **options):
    # One stage of so many of the file's records.
    stages = [np.array([[0, 0, records]], np.uint64)]
    return BatchReader([file], FEATURES, shuffle=False, stages=stages, **options)


def delivered(made) -> Rows:
    found: Rows = []
    for batch in batches(made):
        valid = batch.get("_valid", np.ones(len(batch["label"]), bool))
        found.append(np.where(valid, batch["label"], -1).tolist())
    return [[PADDING if label == -1 else label for label in batch] for batch in found]


divisions = {
    "records": st.integers(1, N),
    "world": st.integers(1, 7),
    "batch_size": st.integers(1, 12),
    "last": st.sampled_from([(True, False), (False, False), (False, True)]),
}


@given(**divisions, data=st.data())
def test_every_ranks_batches_are_the_models_from_any_position(
    file, records, world, batch_size, last, data
):
    drop_last, pad_last = last
    options = {"batch_size": batch_size, "world": world}
    options.update(drop_last=drop_last, pad_last=pad_last)
    try:
        expected = model(records, world, batch_size, drop_last, pad_last)
    except ValueError:
        for rank in range(world):  # all of them, or one would wait for the others
            with pytest.raises(ValueError, match="make no"):
                reader(file, records, rank=rank, **options)
        return
    start = data.draw(st.integers(0, len(expected[0])))
    every = data.draw(st.integers(1, 3))
    for rank in range(world):
        found = reader(file, records, rank=rank, start=start, every=every, **options)
        assert found.num_batches == len(expected[rank])
        assert delivered(found) == expected[rank][start::every]


@given(**divisions)
def test_without_drop_last_each_record_comes_once_and_the_ranks_differ_by_a_row(
    file, records, world, batch_size, last
):
    drop_last, pad_last = last
    if drop_last or records < world or (batch_size == 1 and records % world):
        return
    options = {"batch_size": batch_size, "world": world, "drop_last": False, "pad_last": pad_last}
    ranks = [delivered(reader(file, records, rank=rank, **options)) for rank in range(world)]
    rows = [label for found in ranks for batch in found for label in batch if label is not PADDING]
    assert sorted(rows) == list(range(records))
    assert len({len(found) for found in ranks}) == 1
    assert all(found for found in ranks)
    if not pad_last:
        last_rows = [len(found[-1]) for found in ranks]
        assert min(last_rows) >= 1
        assert max(last_rows) - min(last_rows) <= 1


def test_where_two_rows_are_left_for_four_ranks_the_others_move_one_of_the_batch_before(file):
    options = {"batch_size": 3, "world": 4, "drop_last": False}
    ranks = [delivered(reader(file, 26, rank=rank, **options)) for rank in range(4)]
    assert [[len(batch) for batch in found] for found in ranks] == [
        [3, 3, 1],
        [3, 3, 1],
        [3, 2, 1],
        [3, 2, 1],
    ]
    assert ranks[3] == [[3, 7, 11], [15, 19], [23]]


def test_a_set_with_fewer_records_than_others_takes_their_steps_with_a_row_each(file):
    found = reader(file, 10, batch_size=4, drop_last=False, batches=5)
    assert delivered(found) == [[0, 1, 2, 3], [4, 5, 6], [7], [8], [9]]


@pytest.mark.parametrize(("records", "batches"), [(4, 5), (9, 2)])
def test_short_batches_that_cannot_hold_the_records_are_refused(file, records, batches):
    with pytest.raises(ValueError, match=f"make no {batches} batches of 1 to 4 rows"):
        reader(file, records, batch_size=4, drop_last=False, batches=batches)


def test_every_column_of_a_short_batch_has_its_rows(tmp_path):
    path = write(tmp_path / "a", [example(i) for i in range(5)])
    made = BatchReader([(str(path), None)], FEATURES, batch_size=4, drop_last=False, ids=True)
    *_, last = batches(made)
    assert "_valid" not in last
    assert {
        name: len(column) for name, column in last.items() if not isinstance(column, tuple)
    } == {name: 1 for name, column in last.items() if not isinstance(column, tuple)}
    for name, column in last.items():
        if isinstance(column, tuple):
            assert len(column[-1]) == 2, name
