"""How fast batches come: alone, beside a thread that computes, and to a consumer that keeps a pace.

What all benchmarks share: the order of a repeat, and how a figure is shown.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tests.bench.data import RecordSet
    from tests.bench.delivery import Passes

PACE = 600e6  # bytes a second, what a paced consumer takes
_MOST_OF_A_PASS = 0.7
_PATIENCE = 8  # times the seconds asked for, before a window ends wherever it is

Some = TypeVar("Some")


def turns(contenders: Iterable[Some], repeat: int) -> list[Some]:
    """The contenders in the order of this repeat, which is another in each."""
    order = list(contenders)
    random.Random(repeat).shuffle(order)
    return order


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and in brackets the least and the greatest."""
    middle = statistics.median(values)
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


@dataclass(frozen=True)
class Window:
    """What came in a stretch of time."""

    records: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Paced:
    """`next_seconds`: spent inside next(). `seconds`: in all, the consumer's sleep included."""

    records: int
    seconds: float
    next_seconds: float


def drain(
    passes: Passes,
    records: RecordSet,
    seconds: float,
    company: AbstractContextManager[object] | None = None,
) -> Window:
    """Takes batches as fast as they come for about `seconds`, beside `company`.

    The window opens with the first batch of a pass, so that start-up is left out. Whoever fills a
    buffer first has read more by then than it delivered; so the window closes with the first batch
    of a later pass, whose start is then within, or, if `seconds` are over long before the end of
    the first, at any batch: as much is read as delivered while the buffer stays full.
    """
    batches = passes()
    next(batches)
    with company or nullcontext():
        cpu = cpu_seconds()
        opened = time.perf_counter()
        soon, late = opened + seconds, opened + _PATIENCE * seconds
        count, now, first_pass = 0, opened, True
        most = _MOST_OF_A_PASS * records.num_records
        while True:
            for batch in batches:
                count += len(batch["label"])
                now = time.perf_counter()
                if now >= soon and ((first_pass and count < most) or now >= late):
                    return Window(count, now - opened, cpu_seconds() - cpu)
            batches = passes()
            count += len(next(batches)["label"])
            first_pass = False
            now = time.perf_counter()
            if now >= soon:
                return Window(count, now - opened, cpu_seconds() - cpu)


def pace(passes: Passes, records: RecordSet, seconds: float, rate: float = PACE) -> Paced:
    """Takes batches at `rate` bytes a second, by sleeping to a schedule, and times next() alone.

    A consumer that was kept waiting catches up. The first batch of each pass is not timed.
    """
    interval = records.batch_size * records.record_bytes / rate
    count, spent, elapsed = 0, 0, 0.0
    while True:
        batches = passes()
        held = next(batches)
        opened = time.perf_counter()
        due = opened
        while True:
            due += interval
            time.sleep(max(0.0, due - time.perf_counter()))
            before = time.perf_counter_ns()
            batch = next(batches, None)
            after = time.perf_counter_ns()
            if batch is None:
                break
            held = batch  # the one before is let go here, outside of the time measured
            count += len(held["label"])
            spent += after - before
            if count >= 2 * records.batch_size and (
                elapsed + time.perf_counter() - opened >= seconds
            ):
                return Paced(count, elapsed + time.perf_counter() - opened, spent / 1e9)
        elapsed += time.perf_counter() - opened


@contextmanager
def computing() -> Iterator[list[int]]:
    """A thread of pure Python that never waits: it gives the GIL up when it is made to. The list has
    the number of its rounds, of a thousand steps each."""
    rounds, ended = [0], False

    def compute() -> None:
        value = 0
        while not ended:
            for _ in range(1000):
                value = (value * 31 + 7) % 1000003
            rounds[0] += 1

    thread = threading.Thread(target=compute, name="computing")
    thread.start()
    try:
        yield rounds
    finally:
        ended = True
        thread.join()


def cpu_seconds() -> float:
    """Processor time of this process, all its threads and all its descendants, living or dead."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
        + (ended.ru_utime + ended.ru_stime)
        + cpu_seconds_of(descendants(os.getpid()))
    )


def cpu_seconds_of(pids: Iterable[int]) -> float:
    return sum(map(_cpu_clock, pids))


def _cpu_clock(pid: int) -> float:
    """Linux makes a clock's number of a process's: man 3 clock_getcpuclockid."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it has ended: RUSAGE_CHILDREN has it
        return 0.0


def descendants(pid: int) -> Iterator[int]:
    """Of a process: those that are alive."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from descendants(child)
