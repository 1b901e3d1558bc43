"""BatchReader over damaged files: no corrupt record is delivered, and nothing more is lost than must be."""

import os
import random
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client._core import BatchReader, Permutation
from cachecd_client.errors import CorruptRecordError, CorruptSidecarError
from tests.core.shards import (
    FEATURES,
    LONG,
    batches,
    example,
    flip,
    frames,
    labels,
    reader_of,
    spoil,
    write,
)

N = 30


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a.tfrecord", [example(i) for i in range(N)])


def read(path, **options):
    options = {"batch_size": 1, "shuffle": False} | options
    return reader_of(path, **options)


# Replacing


def test_a_corrupt_record_is_replaced_by_the_next_and_noted_once(shard):
    spoil(shard, [4, 7, 8])
    reader = read(shard)
    expected = list(range(N))
    expected[4], expected[7], expected[8] = 5, 9, 9
    assert labels(reader) == expected
    offsets = _core.scan(str(shard))
    found = sorted(reader.corrupt)
    assert [(path, offset) for path, offset, _ in found] == [
        (str(shard), int(offsets[record])) for record in (4, 7, 8)
    ]
    assert all(why.startswith("data CRC is 0x") for _, _, why in found)


@settings(max_examples=50 if LONG else 20)
@given(
    corrupt=st.sets(st.integers(0, N - 1), max_size=N),
    world=st.integers(1, 4),
    seed=st.integers(0, 50),
    threads=st.integers(1, 3),
)
def test_a_replacement_is_the_next_good_position_of_the_same_rank(
    tmp_path_factory, corrupt, world, seed, threads
):
    folder = tmp_path_factory.mktemp("corrupt")
    path = write(folder / "a", [example(i) for i in range(N)])
    spoil(path, corrupt)
    order = Permutation(N, seed).take(0, N).tolist()
    for rank in range(world):
        mine = order[rank::world]
        reader = read(
            path,
            batch_size=2,
            shuffle=True,
            seed=seed,
            rank=rank,
            world=world,
            threads=threads,
            last="pad",
        )
        if corrupt >= set(mine):
            with pytest.raises(CorruptRecordError):
                batches(reader)
            continue
        found = batches(reader)
        got = [n for b in found for n in b["label"][b["_valid"]].tolist()]
        expected = []
        for position in range(len(mine)):
            cycle = mine[position:] + mine[:position]
            expected.append(next(record for record in cycle if record not in corrupt))
        assert got == expected
    shutil.rmtree(folder)


# Raising


@pytest.mark.parametrize("threads", [1, 4])
def test_raise_delivers_what_precedes_and_then_the_error(shard, threads):
    spoil(shard, [11])
    reader = read(shard, batch_size=4, on_corrupt="raise", threads=threads)
    assert [reader.next()["label"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="data CRC") as caught:
            reader.next()
        assert (caught.value.path, caught.value.offset) == (
            str(shard),
            int(_core.scan(str(shard))[11]),
        )
    assert [(path, offset) for path, offset, _ in reader.corrupt] == [
        (str(shard), caught.value.offset)
    ]


# Every damage


SMALL = 4  # records: their bytes are altered one by one


@pytest.fixture
def small(tmp_path):
    return write(tmp_path / "small.tfrecord", [example(i) for i in range(SMALL)])


def deliver(path):
    try:
        return labels(read(path, batch_size=SMALL, on_corrupt="raise"))
    except (CorruptRecordError, CorruptSidecarError) as error:
        return type(error)


def test_every_altered_byte_of_a_shard_is_found(small):
    good = small.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        small.write_bytes(bad)
        assert deliver(small) is CorruptRecordError


def test_every_altered_byte_of_what_the_reader_needs_of_a_sidecar_is_found(small):
    sidecar = small.with_name(small.name + ".idx")
    good = sidecar.read_bytes()
    # Meta, units and ordinals are nothing to the reader; Sidecar.read verifies them.
    begin = 52 + 6 + 24 + len(b"key" + b"etag") + 4
    offsets = range(begin, begin + 8 * SMALL + 4)
    for at in [*range(52), *offsets]:
        bad = bytearray(good)
        bad[at] ^= 0x10
        sidecar.write_bytes(bad)
        assert deliver(small) is CorruptSidecarError


@pytest.mark.parametrize("ending", ["", ".idx"])
def test_every_truncation_of_a_shard_or_sidecar_is_found(small, ending):
    path = small.with_name(small.name + ending)
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        assert deliver(small) is CorruptSidecarError


# Going on in spite of it


def test_a_shard_cut_short_loses_only_what_was_cut_off(shard):
    offsets = _core.scan(str(shard))
    os.truncate(shard, int(offsets[20]) + 5)
    reader = read(shard)
    assert reader.num_records == N  # so that ranks and the lease's count still agree
    assert labels(reader) == [*range(20), *[0] * 10]
    found = reader.corrupt
    assert found[0][:2] == (str(shard), int(offsets[20]) + 5)
    assert "sidecar: it describes" in found[0][2]
    assert sorted(offset for _, offset, why in found if "cut short" in why) == offsets[20:].tolist()


def test_a_sidecar_that_is_damaged_costs_a_walk_and_no_record(shard):
    flip(shard.with_name(shard.name + ".idx"), 52 + 6 + 35 + 8)
    reader = read(shard)
    assert labels(reader) == list(range(N))
    ((path, offset, why),) = reader.corrupt
    assert (path, offset) == (str(shard), 0)
    assert why.startswith("sidecar: offsets CRC")


def test_a_foreign_file_with_a_cut_tail_keeps_what_precedes(tmp_path):
    (tmp_path / "a").write_bytes(frames(example(i) for i in range(5))[:-1])
    reader = read(tmp_path / "a")
    assert labels(reader) == [0, 1, 2, 3]
    assert len(reader.corrupt) == 1
    with pytest.raises(CorruptRecordError, match="cut short"):
        read(tmp_path / "a", on_corrupt="raise")


@pytest.mark.parametrize("on_corrupt", ["replace", "raise"])
def test_a_file_that_is_no_tfrecord_file_is_never_skipped_in_silence(tmp_path, on_corrupt):
    (tmp_path / "a").write_bytes(random.Random(1).randbytes(1000))
    with pytest.raises(CorruptRecordError, match="length CRC") as caught:
        read(tmp_path / "a", on_corrupt=on_corrupt)
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "a"), 0)


def test_a_shard_cut_while_it_is_read_is_lost_records_and_no_crash(tmp_path):
    # A bare mapping would be a SIGBUS. 128 kB granules are asked for once, so the cut is in others.
    record = _core.encode_example({"label": 1, "name": bytes(200_000), "list": []})
    path = write(tmp_path / "a", [record] * 40)
    reader = read(path, threads=1, prefetch_bytes=0)
    reader.next()
    offsets = _core.scan(str(path))
    os.truncate(path, int(offsets[20]))
    rest = batches(reader)
    assert len(rest) == 39
    assert {offset for _, offset, _ in reader.corrupt} == set(offsets[20:].tolist())


def test_offsets_between_records_are_corrupt_records(shard):
    offsets = _core.scan(str(shard))
    shifted = np.concatenate([offsets[:5], offsets[5:] + np.uint64(1)])
    reader = BatchReader(
        [(str(shard), shifted)], FEATURES, batch_size=1, shuffle=False, on_corrupt="raise"
    )
    assert [reader.next()["label"].item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(CorruptRecordError, match="the index says"):
        reader.next()


def test_ids_are_those_of_the_replacement(shard):
    spoil(shard, [4])
    reader = read(shard, batch_size=N, ids=True)
    (batch,) = batches(reader)
    assert batch["_record"].tolist() == batch["label"].tolist()
