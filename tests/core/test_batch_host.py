"""What a reader takes of its machine: as much as it is told that there is."""

from __future__ import annotations

import os

import pytest

from cachecd_client import FileSet, resources
from tests.core.processes import until
from tests.core.shards import example, reader_of, write
from tests.pagecache import dropped, resident

MiB = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """24 MiB and more: a batch is the smallest part of it, and less than half is what a kernel reads
    ahead by itself, which are 8 MiB on some devices."""
    records = [example(i) for i in range(8 * MiB // len(example(0)))]
    return write(tmp_path_factory.mktemp("host") / "set", 3 * records)


def reader(path, **options):
    return reader_of(path, batch_size=2, prefetch_bytes=1, **options)


def test_a_set_that_memory_cannot_keep_is_not_read_ahead_of_what_is_wanted(path):
    dropped(path)
    reading = reader(path, threads=1, shuffle=False, memory=2 * path.stat().st_size - 2)
    reading.next()
    reading.close()  # waits for what it has asked the disk
    assert sum(resident(path)) < len(resident(path)) // 2


def test_a_set_that_fits_is_read_ahead_as_a_whole(path):
    dropped(path)
    reading = reader(path, threads=1, shuffle=False, memory=2 * path.stat().st_size)
    reading.next()
    until(lambda: all(resident(path)))
    reading.close()


def test_a_loader_takes_no_more_than_the_cgroup_leaves(path, monkeypatch):
    monkeypatch.setattr(resources, "memory", lambda *_: 10 * MiB)
    monkeypatch.setattr(resources, "processors", lambda: 1)
    dropped(path)
    before = set(os.listdir("/proc/self/task"))
    loader = FileSet(path, window=None).numpy(2, shuffle=False, prefetch_bytes=1)
    batches = iter(loader)
    next(batches)
    assert len(set(os.listdir("/proc/self/task")) - before) == 1
    loader.close()
    assert sum(resident(path)) < len(resident(path)) // 2
    assert FileSet(path).numpy(2).prefetch_bytes == 10 * MiB // 16
    monkeypatch.undo()
    assert FileSet(path).numpy(2).prefetch_bytes == min(64 * MiB, resources.memory() // 16)
