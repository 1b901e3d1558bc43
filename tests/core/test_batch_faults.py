"""BatchReader while its files change, the disk fails, and others handle SIGBUS too."""

import os
import signal
from pathlib import Path

import pytest

from cachecd_client import _core
from cachecd_client._core import BatchReader
from tests.core.processes import run_program
from tests.core.shards import FEATURES, batches, example, labels, write

N = 4000


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a", [example(i) for i in range(N)])


def slowly(*paths, **options):
    """A reader that does next to nothing ahead."""
    options = {"batch_size": 10, "shuffle": False, "prefetch_bytes": 1, "threads": 1} | options
    return BatchReader([(str(path), None) for path in paths], FEATURES, **options)


# Files


def test_a_file_without_its_name_is_read_to_its_end(shard, tmp_path):
    reader = slowly(shard)
    reader.next()
    shard.rename(tmp_path / "moved")
    Path(f"{shard}.idx").unlink()
    write(shard, [example(-1)])
    assert labels(reader) == list(range(10, N))
    (tmp_path / "moved").unlink()
    reader.restart()
    assert labels(reader) == list(range(N))
    assert reader.corrupt == []


def test_a_page_that_one_thread_misses_costs_other_threads_none_of_their_records(tmp_path):
    """The page is replaced for all of them, and records lie side by side on it."""
    record = _core.encode_example({"label": 1, "name": bytes(1500), "list": []})
    path = write(tmp_path / "a", [record] * 4000)
    offsets = _core.scan(str(path))
    reader = slowly(path, threads=4, prefetch_bytes=1 << 16, batch_size=4)
    reader.next()
    size = int(offsets[2000])
    os.truncate(path, size)
    found = batches(reader)
    assert all(batch["name"][0].tobytes() == bytes(6000) for batch in found)
    # Made ahead, or brought in and not yet asked for again, when the file was cut.
    assert {offset for _, offset, _ in reader.corrupt} <= set(offsets[2000:].tolist())
    assert len(reader.corrupt) > 1900


# Others that handle SIGBUS

FAULTS = """
import ctypes, faulthandler, mmap, os, signal, sys
from cachecd_client import _core
from tests.core.test_batch_faults import slowly

path, order, *endings = sys.argv[1:]
if order == "before":
    faulthandler.enable()
reader = slowly(path)
reader.next()
if order == "after":
    faulthandler.enable()
os.truncate(path, 4096)
while reader.next() is not None:
    pass
print(reader.num_corrupt, flush=True)
for ending in endings:
    if ending == "disabled":
        faulthandler.disable()
    elif ending == "sent":
        os.kill(os.getpid(), signal.SIGBUS)
    elif ending == "touched":
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
        os.truncate(path, 0)
        mapped[0]
"""


@pytest.mark.parametrize("order", ["never", "before", "after"])
def test_a_fault_is_a_corrupt_record_whoever_else_handles_them(shard, order):
    done = run_program(FAULTS, shard, order)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > N / 2


@pytest.mark.parametrize(
    ("order", "ending"), [("never", "sent"), ("before", "touched"), ("after", "sent")]
)
def test_what_is_not_the_readers_ends_the_process_as_without_it(shard, order, ending):
    done = run_program(FAULTS, shard, order, ending)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.count("Fatal Python error: Bus error") == (order != "never")
