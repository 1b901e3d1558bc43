"""BatchReader: which of a rank's records make which of its batches, against a model of lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client._core import BatchReader, Division
from tests.core.shards import FEATURES, batches, example, write

N = 60
PADDING = None

Rows = list[list[int | None]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("division") / "a", [example(i) for i in range(N)])
    return str(path), None


def model(records: int, world: int, batch_size: int, last: str) -> list[Rows]:
    """Each rank's batches; ValueError if each record cannot come once, in no empty batch."""
    shares = [list(range(records))[rank::world] for rank in range(world)]
    if last == "drop":
        whole = records // world // batch_size * batch_size
        shares = [share[:whole] for share in shares]
    ranks: list[Rows] = [
        [share[at : at + batch_size] for at in range(0, len(share), batch_size)] for share in shares
    ]
    steps = max(len(found) for found in ranks)
    for found in ranks:
        if last == "pad":
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
    "last": st.sampled_from(["drop", "short", "pad"]),
}


@given(**divisions, data=st.data())
def test_every_ranks_batches_are_the_models_from_any_position(
    file, records, world, batch_size, last, data
):
    options = {"batch_size": batch_size, "world": world, "last": last}
    try:
        expected = model(records, world, batch_size, last)
    except ValueError:
        for rank in range(world):  # all of them, or one would wait for the others
            with pytest.raises(
                ValueError, match="some rank would have no record for its last batch"
            ):
                reader(file, records, rank=rank, **options)
        return
    division = Division(records, **options)
    start = data.draw(st.integers(0, len(expected[0])))
    every = data.draw(st.integers(1, 3))
    for rank in range(world):
        found = reader(file, records, rank=rank, start=start, every=every, **options)
        assert found.num_batches == division.steps == len(expected[rank])
        rows = [sum(row is not PADDING for row in batch) for batch in expected[rank]]
        assert division.rows(rank).tolist() == rows
        assert division.begin(start, rank) == sum(rows[:start])
        assert delivered(found) == expected[rank][start::every]


@given(
    sets=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    world=st.integers(1, 4),
    batch_size=st.integers(1, 12),
    last=st.sampled_from(["drop", "short", "pad"]),
)
def test_nodes_with_other_sets_take_the_same_steps(sets, world, batch_size, last):
    step = world * batch_size
    steps = min(n // step for n in sets) if last == "drop" else max(-(-n // step) for n in sets)
    options = (batch_size, world, last, (min(sets), max(sets)))
    if last == "short" and min(sets) // world < steps:
        for records in sets:  # all of them, or one would wait for the others
            with pytest.raises(
                ValueError, match=f"{min(sets)} records over {world} ranks, {steps} b"
            ):
                Division(records, *options)
        return
    divisions = [Division(records, *options) for records in sets]
    assert {division.steps for division in divisions} == {steps}
    rows = [d.rows(rank).tolist() for d in divisions for rank in range(world)]
    for division, records in zip(divisions, sets, strict=True):
        read = sum(division.rows(rank).sum() for rank in range(world))
        assert read == (steps * step if last == "drop" else records)
    if last != "pad":
        assert all(0 < each <= batch_size for found in rows for each in found)
    is_full = last != "short" or all(each == batch_size for found in rows for each in found)
    assert {division.is_full for division in divisions} == {is_full}
