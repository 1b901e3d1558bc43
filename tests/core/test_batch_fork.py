"""BatchReader where the process that has it is forked."""

import ctypes
import gc
from pathlib import Path

import pytest

from tests.core.processes import in_child
from tests.core.shards import batches, reader_of

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

# Not mapped and not to be read, wherever that is free: MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE.
FENCE = 0x02 | 0x20 | 0x100000
MMAP = ctypes.CDLL(None).mmap
MMAP.restype = ctypes.c_void_p
MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]
TAKEN = ctypes.c_void_p(-1).value


def says_where_to_create_it(call):
    try:
        call()
    except RuntimeError as error:
        return "create the loader in the worker" in str(error)
    return False


def test_a_forked_child_is_told_to_create_its_own_reader(shard):
    reader = reader_of(shard, batch_size=1, threads=4, prefetch_bytes=0)
    calls = [
        reader.next,
        reader.close,
        reader.restart,
        lambda: reader.corrupt,
        lambda: reader.num_corrupt,
    ]
    for call in calls:
        assert in_child(lambda call=call: says_where_to_create_it(call))
    assert in_child(lambda: reader.num_records == reader.num_batches == 200)
    assert len(batches(reader)) == 200


def test_a_forked_child_can_drop_the_readers_and_arrays_it_inherited(shard):
    reader = reader_of(shard, batch_size=1, threads=4, prefetch_bytes=0)
    inherited = [reader, reader.next(), reader.next()]
    del reader

    def drop():
        inherited.clear()
        gc.collect()
        return True

    for _ in range(5):
        assert in_child(drop)
    assert len(batches(inherited[0])) == 198


def test_a_forked_child_neither_touches_nor_unmaps_where_its_parents_files_were(shard):
    """Something else may lie there by then: the child's memory, or a thread's stack."""
    readers = [reader_of(shard, batch_size=1, threads=4) for _ in range(2)]
    batches(readers[0])  # at its end, and one in the middle, whose batches are kept
    kept = [readers[1].next(), readers[1].next()]
    kept.append(kept)
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in lines
        if line.endswith(f" {shard}")
    ]
    assert len(ranges) == 2

    def fence():
        return [MMAP(begin, end - begin, 0, FENCE, -1, 0) for begin, end in ranges]

    def check():
        assert fence() == [begin for begin, _ in ranges]
        kept.clear()
        readers.clear()
        gc.collect()
        batches(reader_of(shard, batch_size=1, threads=4))
        return fence() == [TAKEN, TAKEN]

    assert in_child(check)
