"""A reader's threads in this process, and a program that ends with a reader at work."""

import time
from pathlib import Path

SCRIPT = """
import sys
from cachecd_client._core import BatchReader
feature = ("label", "int64", "int64", (), False)
reader = BatchReader([(sys.argv[1], None)], [feature], batch_size=1, threads=4, prefetch_bytes=0)
kept = reader.next()["label"]
cycle = [reader]; cycle.append(cycle)
"""


def until(condition):
    """Polls until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def reader_threads():
    """States of the reader's threads in this process."""
    states = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended
            continue
        if name == "cachecd":
            states.append(rest.split()[0])
    return states


def thread_state(native_id):
    """R for running, S for sleeping."""
    return Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()[0]
