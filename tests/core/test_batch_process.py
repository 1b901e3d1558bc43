"""BatchReader and the process around it: the GIL, threads, memory, signals, the end."""

import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client._core import BatchReader
from tests.core.processes import SCRIPT, reader_threads, run_program, thread_state, until
from tests.core.shards import FEATURES, LONG, example, frames, labels, reader_of, write

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A file whose every record is corrupt: looking for a good one takes seconds."""
    path = tmp_path_factory.mktemp("endless") / "a"
    frame = bytearray(frames([example(1)]))
    frame[-1] ^= 1
    path.write_bytes(frame * 1_000_000)
    return (str(path), np.arange(1_000_000, dtype=np.uint64) * np.uint64(len(frame)))


# The GIL


def test_a_ready_batch_is_returned_without_giving_the_gil_away(shard):
    reader = reader_of(shard, batch_size=2, prefetch_bytes=1 << 30)
    until(lambda: not reader_threads())  # they end when everything is made
    stop = threading.Event()
    ran = 0

    def compute():
        nonlocal ran
        while not stop.is_set():
            ran += 1

    rival = threading.Thread(target=compute)
    interval = sys.getswitchinterval()
    rival.start()
    try:
        # Whoever gives the GIL away to a computing thread waits this long to get it back.
        sys.setswitchinterval(5)
        before = ran
        found = [reader.next() for _ in range(100)]
        during = ran - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        rival.join()
    assert all(batch is not None for batch in found)
    assert during == 0
    assert reader.seconds_waited == 0


def test_waiting_leaves_the_gil_to_others_and_is_accounted_for(endless):
    reader = BatchReader([endless], FEATURES, batch_size=1)
    raised = []

    def wait():
        with pytest.raises(RuntimeError, match="the reader is closed") as caught:
            reader.next()
        raised.append(caught)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: thread_state(waiting.native_id) == "S")
    reader.close()  # would not be reached if next() kept the GIL
    waiting.join()
    assert len(raised) == 1
    assert reader.seconds_waited > 0


def test_several_python_threads_share_one_reader(shard):
    reader = reader_of(shard, batch_size=1, prefetch_bytes=0)
    taken = []
    consumers = [threading.Thread(target=lambda: taken.extend(labels(reader))) for _ in range(4)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    assert sorted(taken) == list(range(200))


# Memory


# A process of its own, whose heap holds nothing that earlier tests have let go.
MEMORY = """
import sys
from cachecd_client._core import BatchReader
from tests.core.processes import reader_threads, until
from tests.core.test_batch_process import anonymous_bytes

feature = ("x", "bytes", "uint8", (1 << 20,), True)
before = anonymous_bytes()
reader = BatchReader(
    [(sys.argv[1], None)], [feature], batch_size=2, threads=3, prefetch_bytes=16 << 20
)
until(lambda: anonymous_bytes() > before + (8 << 20))
until(lambda: all(reader_threads() == ["S"] * 3 for _ in range(50)))
ahead = anonymous_bytes() - before
for _ in range(60):
    reader.next()
print(ahead, anonymous_bytes() - before)
"""


def anonymous_bytes():
    """This process's memory that is not a file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon in /proc/self/status")


def test_what_is_made_ahead_is_bounded_by_bytes(tmp_path):
    record = _core.encode_example({"x": bytes(1 << 20)})
    path = write(tmp_path / "a", [record] * 200)
    done = run_program(MEMORY, path)
    ahead, afterwards = map(int, done.stdout.split())
    assert 12 << 20 < ahead < 24 << 20
    # Nor does what was delivered and let go pile up.
    assert afterwards < 48 << 20


# The end


def test_closing_interrupts_a_search_for_a_replacement(endless):
    reader = BatchReader([endless], FEATURES, batch_size=1, threads=1)
    until(lambda: len(reader.corrupt) > 100)
    start = time.monotonic()
    reader.close()
    assert len(reader.corrupt) < 1_000_000
    assert time.monotonic() - start < 0.5  # the search itself takes seconds


def test_an_interrupt_is_raised_while_waiting(endless):
    reader = BatchReader([endless], FEATURES, batch_size=1)
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        reader.next()
    interrupt.join()
    reader.close()


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "import os; os._exit(0)"])
def test_a_process_ends_though_a_reader_is_open(shard, ending):
    done = run_program(SCRIPT + ending, shard, PYTHONWARNINGS="error")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


DAEMON = """
import sys, threading
from cachecd_client import _core
feature = ("label", "int64", "int64", (), False)
buffer = bytes(4 << 20)
begun = threading.Event()

def count(values):
    for _ in range(100):
        begun.set()
    return values

def verify():
    while True:
        _core.crc32c(buffer)  # takes the GIL again, for half a millisecond in vain
        begun.set()

def read(**options):
    reader = _core.BatchReader([(sys.argv[1], None)], [feature], batch_size=1, **options)
    while True:
        while reader.next() is not None:
            begun.set()
        reader.restart()

def wrap():
    read(wrap={"label": count})

threading.Thread(target=globals()[sys.argv[2]], daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("work", ["verify", "read", "wrap"])
def test_a_daemon_thread_that_reads_lets_the_interpreter_end(shard, work):
    for _ in range(3 if LONG else 1):
        done = run_program(DAEMON, shard, work)
        assert done.returncode == 0, done.stderr
