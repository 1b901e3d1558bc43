"""Measures a sampler process: seconds by stage, seconds of waiting for bytes, and spans for a timeline.

A step of filling handles one record, or one run of records. One step in many is timed, stage by stage, and
stands for the steps since the last timed step; the other steps only look at `Meter.on`. While steps are
long, each step is timed, because one long step that stands for many adds more seconds than have passed.
Waiting for bytes, requests and synced shards are few, so each is measured.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cachecd.model import StageSeconds
from cachecd.sampler.messages import Effort
from cachecd.stores.answers import without_secrets
from cachecd_client.protocol import MAX_SPANS, Span

# One step in so many is timed, if the last timed step was slow or not. A timed step takes 16 us more than
# the others. Prime numbers, because the lanes of a stream take turns: a multiple of their number would
# always meet the same lane, or only the steps that begin a unit.
ONE_IN_SLOW, ONE_IN_FAST = 17, 127
_SLOW, _LONG = 0.001, 0.02  # seconds of a step; each step is timed after a long step
_SHORT = 0.001  # seconds
_LONGEST_NAME = 100  # characters of a span's name

T = TypeVar("T")


class Meter:
    """Measures a process. Belongs to its event loop. `turn` names the dataset whose work follows. `take`
    returns the work on this dataset since its last call.

    The CPU seconds of the stage `fetch` are those of the whole process that no other stage explains,
    because the threads of a store's library cannot be measured one by one.
    """

    turns: Iterator[bool]
    """Yields for each step whether it is timed. An iterator, because a call would take longer."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self, slow: int = ONE_IN_SLOW, fast: int = ONE_IN_FAST) -> None:
        """Forgets everything. From now on, one step in `slow` is timed, or one in `fast`;
        after a long step, the next step."""
        self.on = False
        """Whether the current step is timed."""
        self._one_in = slow, fast
        # The first step also infers the schema, so it would not be typical.
        self._time_after(slow)
        self._began = 0.0
        self._stage = ""
        self._since = self._cpu_since = 0.0
        self._dataset = ""
        self._why: Callable[[], str] = lambda: "link"
        # By dataset and stage: the fields of StageSeconds.
        self._stages: dict[str, dict[str, list[float]]] = {}
        self._current: dict[str, list[float]] = {}  # of the current dataset
        self._waits: dict[str, dict[str, float]] = {}
        self._explained = 0.0  # CPU seconds of stages since the process's CPU time was read
        self._debt: dict[str, float] = {}  # explained CPU seconds, beyond those of the process
        self._process_cpu = time.process_time()
        self._waiting = 0  # how many coroutines wait for bytes
        self._waits_since = 0.0
        self._stage_before = ""  # the stage of a timed step before the wait
        # A heap of seconds, begin, name and subject: the shortest span is first.
        self._spans: list[tuple[float, float, str, str]] = []
        self._spans_since = time.monotonic()

    def turn(self, dataset: str, why: Callable[[], str]) -> None:
        """Notes the dataset whose work follows. `why()` returns why bytes are late now: a key of
        `Effort.waits`."""
        self._settle()
        self._dataset, self._why = dataset, why
        self._current = self._stages.get(dataset, {})

    def take(self) -> Effort | None:
        """Returns the work on the current dataset since the last call, or None if there was none. The
        longest spans of all datasets come with it once a second."""
        self._settle()
        stages, waits = self._stages.pop(self._dataset, {}), self._waits.pop(self._dataset, {})
        self._current = {}
        spans: list[Span] = []
        if time.monotonic() >= self._spans_since + 1.0:
            spans = [
                (f"{name} {without_secrets(of)}".strip()[:_LONGEST_NAME], begin, seconds)
                for seconds, begin, name, of in self._spans
            ]
            self._spans, self._spans_since = [], time.monotonic()
        if not (stages or spans):
            return None
        seconds = {
            stage: StageSeconds(cpu, wall, int(records))
            for stage, (cpu, wall, records) in stages.items()
        }
        return Effort(os.getpid(), seconds, waits, spans)

    # --- timed steps

    def begin(self) -> None:
        """Begins a timed step with the stage "decode"."""
        self.on, self._stage = True, "decode"
        self._since, self._cpu_since = time.monotonic(), time.thread_time()
        self._began = self._since

    def end(self) -> None:
        """Ends a timed step."""
        self.enter("")
        self.on = False
        slow, fast = self._one_in
        seconds = self._since - self._began
        self._time_after(1 if seconds > _LONG else slow if seconds > _SLOW else fast)

    def _time_after(self, steps: int) -> None:
        """Times the last one of the next steps."""
        self._every = steps
        self.turns = itertools.chain(itertools.repeat(False, steps - 1), itertools.repeat(True))

    def enter(self, stage: str, records: int = 0) -> str:
        """Ends the stage of a timed step, and begins the next stage, which `records` records pass; "":
        nothing is measured. Returns the stage that ended."""
        now, cpu = time.monotonic(), time.thread_time()
        before, self._stage = self._stage, stage
        if before:
            seconds, every = now - self._since, self._every
            self._add(before, (cpu - self._cpu_since) * every, seconds * every, 0)
            if len(self._spans) < MAX_SPANS or seconds > self._spans[0][0]:
                self._keep(before, self._since, seconds)
        if records:
            self.passed(stage, records)
        self._since, self._cpu_since = now, cpu
        return before

    def explain(self, stage: str, cpu_s: float) -> None:
        """Adds the CPU seconds that a timed step used in another thread."""
        self._add(stage, cpu_s * self._every, 0.0, 0)

    async def pause(self) -> None:
        """Lets the other tasks of the event loop run during a timed step, and does not count them."""
        before = self.enter("")
        await asyncio.sleep(0)
        self.enter(before)

    # --- whatever is measured each time

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures a wait for bytes. Waits of several coroutines at a time count once."""
        self._begin_waiting()
        try:
            yield
        finally:
            self._end_waiting()

    async def wait_for(self, bytes_: Awaitable[T]) -> T:
        """Returns the bytes, and measures the wait. Costs less than `waiting`."""
        self._begin_waiting()
        try:
            return await bytes_
        finally:
            self._end_waiting()

    def _begin_waiting(self) -> None:
        if not self._waiting:
            self._stage_before = self.enter("") if self.on else ""
            self._waits_since = time.monotonic()
        self._waiting += 1

    def _end_waiting(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._end_wait()
            if self.on:
                self.enter(self._stage_before)

    @contextmanager
    def stage(self, name: str, records: int = 1) -> Iterator[None]:
        """Measures a stage of the event loop's thread, which `records` records pass. For stages that begin
        with few steps, which timed steps would seldom meet."""
        is_timed, before = self.on, self.enter("") if self.on else ""
        began, cpu = time.monotonic(), time.thread_time()
        self.on = False
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._add(name, time.thread_time() - cpu, seconds, records)
            self._keep(name, began, seconds)
            self.on = is_timed
            if is_timed:
                self.enter(before)

    async def off_loop(self, stage: str, code: Callable[[], T], records: int = 0) -> T:
        """Returns the result of a stage that runs in another thread, and which `records` records pass."""

        def timed() -> tuple[T, float]:
            cpu = time.thread_time()
            return code(), time.thread_time() - cpu

        before, began = self.enter("") if self.on else "", time.monotonic()
        result, cpu = await asyncio.to_thread(timed)
        seconds = time.monotonic() - began
        self._add(stage, cpu, seconds, records)
        self._keep(stage, began, seconds)
        if self.on:
            self.enter(before)
        return result

    def span(self, name: str, begin: float, of: str = "") -> None:
        """Notes a span that ends now, for the timeline. `of`: what the work was about."""
        seconds = time.monotonic() - begin
        if len(self._spans) < MAX_SPANS or seconds > self._spans[0][0]:
            self._keep(name, begin, seconds, of)

    def passed(self, stage: str, records: int) -> None:
        """Notes that records passed a stage; in a timed step, they stand for those of all steps."""
        self._add(stage, 0.0, 0.0, records * self._every if self.on else records)

    # ---

    def _add(self, stage: str, cpu_s: float, wall_s: float, records: int) -> None:
        # No StageSeconds yet, because making two of them takes as long as reading the clocks.
        if (total := self._current.get(stage)) is None:
            total = self._stages.setdefault(self._dataset, self._current).setdefault(
                stage, [0, 0, 0]
            )
        total[0] += cpu_s
        total[1] += wall_s
        total[2] += records
        self._explained += cpu_s

    def _keep(self, name: str, begin: float, seconds: float, of: str = "") -> None:
        """Keeps a span if it is one of the longest since the last report."""
        if len(self._spans) < MAX_SPANS:
            heapq.heappush(self._spans, (seconds, begin, name, of))
        elif seconds > self._spans[0][0]:
            heapq.heapreplace(self._spans, (seconds, begin, name, of))

    def _end_wait(self) -> None:
        now = time.monotonic()
        waited = now - self._waits_since
        # The reason of a short wait is not worth the question: limits cause long waits.
        why = self._why() if waited > _SHORT else "link"
        waits = self._waits.setdefault(self._dataset, {})
        waits[why] = waits.get(why, 0.0) + waited
        self._add("fetch", 0.0, waited, 0)
        self._keep("wait", self._waits_since, waited)
        self._waits_since = now

    def _settle(self) -> None:
        """Attributes the CPU time of the process up to now, and the part of a wait that has passed."""
        if self._waiting:
            self._end_wait()
        cpu = time.process_time()
        rest = cpu - self._process_cpu - self._explained - self._debt.pop(self._dataset, 0.0)
        self._process_cpu, self._explained = cpu, 0.0
        if not self._dataset:
            return  # imports
        if rest > 0:
            self._add("fetch", rest, 0.0, 0)
            self._explained = 0.0
        else:
            self._debt[self._dataset] = -rest


METER = Meter()
"""Measures this process. There is one, because the CPU time of a process is one."""
