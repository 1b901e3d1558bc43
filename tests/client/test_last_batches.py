"""How a loader's records are divided: what is dropped, short, padded or refused."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client.errors import CallerError, CorruptError
from cachecd_client.files.file_set import FileSet
from tests.client.records import examples, write, write_set

N, EACH = 103, 20


@given(
    world=st.integers(1, 9),
    batch_size=st.integers(1, 11),
    last=st.sampled_from([{"drop_last": True}, {"drop_last": False}, {"pad_last": True}]),
    stop=st.integers(0, 10),
)
def test_length_rows_and_resuming_agree_with_what_comes(files, world, batch_size, last, stop):
    options = {"batch_size": batch_size, "world": world, "seed": 4, **last}
    if last == {"drop_last": False} and batch_size == 1 and N % world:
        with pytest.raises(CallerError, match="pad_last=True"):
            files.numpy(rank=0, **options)
        return
    found, steps = [], set()
    for rank in range(world):
        loader = files.numpy(rank=rank, **options)
        begun = list(itertools.islice(loader, min(stop, len(loader))))
        state = loader.state_dict()
        resumed = files.numpy(rank=rank, **options)
        resumed.load_state_dict(state)
        batches = begun + list(resumed)
        assert len(batches) == len(loader)
        steps.add(len(batches))
        valid = [b["label"][b["_valid"]] if "_valid" in b else b["label"] for b in batches]
        rows = [len(each) for each in valid]
        assert rows == loader.division.rows(rank).tolist()
        sums = [loader.division.begin(batch, rank) for batch in range(len(rows) + 1)]
        assert np.diff(sums).tolist() == rows
        assert ("_valid" in batches[0]) == ("pad_last" in last)
        found += [int(label) for each in valid for label in each]
    assert len(steps) == 1
    assert len(set(found)) == len(found)
    if last != {"drop_last": True}:
        assert len(found) == N


@pytest.mark.parametrize(("batch_size", "world"), [(1, 2), (5, 104)])
def test_a_step_without_a_record_for_some_rank_is_refused_on_all(files, batch_size, world):
    for rank in (0, world - 1):
        with pytest.raises(CallerError, match="no record for its last batch; pad_last=True"):
            files.numpy(batch_size, drop_last=False, rank=rank, world=world)
        assert files.numpy(batch_size, pad_last=True, rank=rank, world=world)


def test_a_mean_of_the_batches_means_by_their_rows_is_the_mean_of_the_set(files):
    """What a plain evaluation computes: no mask, no sum of its own."""
    sums = rows = 0.0
    for rank in range(4):
        for batch in files.numpy(8, drop_last=False, shuffle=False, rank=rank, world=4):
            hits = batch["label"] == 0  # the class of a row of zeros
            sums += hits.mean() * len(hits)
            rows += len(hits)
    assert (sums, rows) == (1.0, N)


@pytest.mark.parametrize("records", [39, 41])
def test_files_that_are_others_than_were_counted_are_an_error_and_no_other_number_of_steps(
    tmp_path, records
):
    first, second = write_set(tmp_path, 80, 40)
    loader = FileSet([first, second]).numpy(8)
    assert len(loader) == 10
    for path in (second, f"{second}.idx"):
        os.unlink(path)
    write(second, examples(range(records)))
    with pytest.raises(CorruptError, match=f"have {40 + records} records, expected 80"):
        list(loader)
