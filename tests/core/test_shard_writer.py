"""ShardWriter: what is written, how much of it, and what is left when it fails."""

import errno
import gc
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError
from tests.core.processes import files_limited_to, in_child
from tests.core.shards import frames, slow_frame

SIDECAR_OVERHEAD = 72
UNIT_BYTES = 24  # beside its key and ETag
RECORD_BYTES = 16


@pytest.fixture
def writer(tmp_path):
    return _core.ShardWriter(str(tmp_path / "a"))


def append_megabytes(writer, count):
    for _ in range(count):
        writer.append(bytes(1 << 20))


def allocated(*paths):
    return sum(os.stat(path).st_blocks * 512 for path in paths)


def test_the_file_is_frames_and_nothing_else(tmp_path, writer):
    payloads = [b"", b"a", b"b" * 5000]
    for payload in payloads:
        assert writer.append(payload)
    assert (writer.num_records, writer.num_bytes) == (3, 5001 + 48)
    expected = SIDECAR_OVERHEAD + UNIT_BYTES + 3 * RECORD_BYTES
    assert writer.sidecar_bytes == expected
    assert writer.finish("{}") == (5049, expected + 2)
    assert (tmp_path / "a").read_bytes() == b"".join(map(slow_frame, payloads))


def test_units_with_records_are_described_in_the_sidecar(tmp_path, writer):
    for unit in (5, 3, 9):
        writer.describe(unit, b"key-%d" % unit, unit, b"etag")
    for unit, ordinal in [(9, 0), (3, 0), (4, 0), (3, 1)]:
        writer.append(b"x", unit=unit, ordinal=ordinal)
    writer.describe(3, b"too late", 0, b"")
    writer.finish("{}")
    sidecar = _core.Sidecar.read(str(tmp_path / "a.idx"))
    assert sidecar.table == [
        (9, b"key-9", 9, b"etag"),
        (3, b"key-3", 3, b"etag"),
        (4, b"", 0, b""),
    ]
    assert sidecar.indices.tolist() == [0, 1, 2, 1]


# Capacity


@given(
    capacity=st.integers(8192, 200_000),
    sizes=st.lists(st.integers(0, 30_000) | st.integers(0, 40), max_size=60),
    meta=st.integers(0, 4096),
)
def test_the_blocks_of_both_files_never_exceed_the_capacity(
    tmp_path_factory, capacity, sizes, meta
):
    path = str(tmp_path_factory.mktemp("capacity") / "a")
    writer = _core.ShardWriter(path, capacity)
    assert allocated(path) <= capacity
    taken = [size for size in sizes if writer.append(bytes(size))]
    assert allocated(path) <= capacity
    data_bytes, sidecar_bytes = writer.finish("x" * meta)
    assert data_bytes == os.path.getsize(path) == sum(size + 16 for size in taken)
    assert (
        sidecar_bytes
        == os.path.getsize(path + ".idx")
        == SIDECAR_OVERHEAD + meta + UNIT_BYTES * bool(taken) + RECORD_BYTES * len(taken)
    )
    assert allocated(path, path + ".idx") <= capacity
    shutil.rmtree(os.path.dirname(path))


def test_the_space_is_taken_before_anything_is_written(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 10 << 20)
    assert allocated(tmp_path / "a") == 10 << 20
    writer.append(b"x")
    writer.finish("{}")
    assert allocated(tmp_path / "a") == 4096
    assert (tmp_path / "a").stat().st_size == 17


def test_meta_for_which_no_room_is_left_is_refused_and_a_shorter_one_taken(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 64 << 10)
    writer.append(bytes(54 << 10))
    with pytest.raises(ValueError, match="4096 are kept for it"):
        writer.finish("x" * (10 << 10))
    writer.finish("x" * 4096)
    assert allocated(tmp_path / "a", tmp_path / "a.idx") <= 64 << 10


# Frames carried over


PAYLOADS = [b"one", b"", b"three" * 9, b"four"]


def test_an_incomplete_frame_waits_for_the_next_call_wherever_it_is_cut(tmp_path):
    body = frames(PAYLOADS)
    for cut in range(len(body) + 1):
        path = tmp_path / f"{cut}"
        writer = _core.ShardWriter(str(path))
        first, consumed, full, *_ = writer.append_frames(body[:cut])
        assert consumed <= cut
        assert not full
        second, rest, full, *_ = writer.append_frames(body[consumed:], ordinal=first)
        assert (first + second, consumed + rest, full) == (4, len(body), False)
        writer.finish("{}")
        assert path.read_bytes() == body
        assert _core.Sidecar.read(f"{path}.idx").ordinals.tolist() == [0, 1, 2, 3]


def test_frames_that_do_not_fit_are_left(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 32 << 10)
    body = frames([bytes(10 << 10)] * 5)
    frame = (10 << 10) + 16
    assert writer.append_frames(body) == (2, 2 * frame, True, 0, [])
    assert writer.append_frames(body[2 * frame :]) == (0, 0, True, 0, [])
    assert writer.append_frames(body[2 * frame : 2 * frame + 100]) == (0, 0, False, 0, [])
    writer.finish("{}")
    assert (tmp_path / "a").read_bytes() == body[: 2 * frame]


def test_a_corrupt_frame_waits_for_the_next_call_which_names_it(tmp_path):
    good = frames(PAYLOADS)
    starts = [0, 19, 35, 96]
    for at in range(len(good)):
        body = bytearray(good)
        body[at] ^= 0x80
        writer = _core.ShardWriter(str(tmp_path / f"{at}"))
        start = max(s for s in starts if s <= at)
        if start:
            assert writer.append_frames(body)[:2] == (starts.index(start), start)
        with pytest.raises(CorruptRecordError) as caught:
            writer.append_frames(body[start:], name="s3://bucket/key", base=1000)
        assert (caught.value.path, caught.value.offset) == ("s3://bucket/key", 1000)
        assert writer.num_records == starts.index(start)
        assert writer.num_bytes == start
        writer.abort()


# Failure


def test_a_disk_too_small_for_the_capacity_shows_at_once_and_leaves_nothing():
    # A tmpfs compares the request with its size before it allocates; a disk would be filled first.
    path = f"/dev/shm/cachecd-test-{os.getpid()}"
    with pytest.raises(OSError) as caught:
        _core.ShardWriter(path, 2 * shutil.disk_usage("/dev/shm").total + (1 << 20))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
    assert not os.path.exists(path)


def test_a_write_that_fails_names_the_file_and_leaves_nothing(tmp_path, writer):
    with files_limited_to(3 << 20), pytest.raises(OSError) as caught:
        append_megabytes(writer, 10)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="finished or aborted"):
        writer.append(b"more")


def test_a_sidecar_that_cannot_be_written_leaves_nothing(tmp_path, writer):
    for _ in range(1000):
        writer.append(b"")  # 16 bytes in the shard, and in the sidecar
    with files_limited_to(16_050), pytest.raises(OSError) as caught:
        writer.finish("{}")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "a.idx"))
    assert list(tmp_path.iterdir()) == []


def test_abort_leaves_nothing_and_may_be_repeated(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 1 << 20)
    writer.append(b"x")
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    for call in (lambda: writer.append(b"y"), lambda: writer.finish("{}")):
        with pytest.raises(RuntimeError, match="finished or aborted"):
            call()


def test_an_unfinished_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"), 1 << 20)
    writer.append(b"x")
    del writer
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_remove_its_parents_shard(tmp_path):
    writer = _core.ShardWriter(str(tmp_path / "a"))
    writer.append(b"x")
    held = [writer]
    del writer
    in_child(lambda: held.clear() or gc.collect())
    held[0].finish("{}")
    assert sorted(os.listdir(tmp_path)) == ["a", "a.idx"]
