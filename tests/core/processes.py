"""A reader's threads in this process, and a program that ends with a reader at work."""

import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = """
import sys
from cachecd_client._core import BatchReader
feature = ("label", "int64", "int64", (), False)
reader = BatchReader([(sys.argv[1], None)], [feature], batch_size=1, threads=4, prefetch_bytes=0)
kept = reader.next()["label"]
cycle = [reader]; cycle.append(cycle)
"""


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Polls until the condition holds; fails the test if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


def reader_threads():
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


def fork() -> int:
    """os.fork, which from Python 3.12 on warns of the daemon's thread that tests run beside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_children(*works: Callable[[], Any]) -> list[Any]:
    """What each of `works` returns (as JSON) in a child of its own made by os.fork, all at the same time;
    fails if a child fails."""
    children = []
    for work in works:
        reading, writing = os.pipe()
        child = fork()
        if child == 0:
            status = 1
            try:
                os.write(writing, json.dumps(work()).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        children.append((child, reading))
    found = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"a child ended with status {status}"
        found.append(json.loads(text))
    return found


def in_child(work: Callable[[], Any]) -> Any:
    return in_children(work)[0]


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond `size`: a disk that refuses, without filling one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_program(
    program: str, *arguments: object, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=Path(__file__).parents[2], env=os.environ | environ, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
