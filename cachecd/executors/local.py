"""Sampler processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import structlog

from cachecd.errors import ConfigError
from cachecd.executors.descendants import MARK, end_marked, mark_of
from cachecd.executors.process import Bounds, SamplerProcess, memory_of
from cachecd.executors.streams import Streams
from cachecd.sampler import messages
from cachecd.sampler.messages import (
    Failed,
    FromStream,
    OfStreams,
    Sealed,
    Setup,
    Working,
)
from cachecd.sampler.throttle import SIZE

_log = structlog.get_logger("cachecd.executor")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
_TIRED = 0.75  # the share of its memory with which a process is replaced once a shard is made


class LocalExecutor:
    """Carries streams by `workers` processes, each stream in the one that carried the fewest when it was
    opened.

    A process is `python` (this interpreter, if None) `-m cachecd.sampler` in a session of its own,
    with the variables `environ` (this process's, if None) and this process's stderr. `launch` starts
    them all, so that their imports are done by the time the first stream opens; `start` listens to
    them, and has what they say reported.

    A process that dies is replaced, and its streams fail, the one that it was working on with its unit. So
    is one that takes more than `memory` bytes, or has been silent for `silence` seconds with a stream (it
    gives a sign of life every quarter of a second, unless a transform hangs). What it started dies with
    it, and what those of a killed executor of the same `name` left, at the start.
    A process near its memory is replaced after a shard; its streams fail, which is nobody's fault.
    One that died before it was done with a single unit is replaced after a pause, which doubles with
    each such death in a row, up to 30 s.

    Belongs to one event loop, on the main thread: the processes die with the thread that starts them.
    """

    def __init__(
        self,
        setup: Setup,
        workers: int,
        python: Path | None,
        environ: Mapping[str, str] | None = None,
        memory: float = float("inf"),
        silence: float = 600.0,
        name: str = "",
    ) -> None:
        self._setup = messages.pack(setup)
        self._command = (str(python or sys.executable), "-m", "cachecd.sampler")
        self._environ = environ
        self._bounds = Bounds(memory, silence)
        self._name = name or f"{id(self):x}"
        self._workers = workers
        self._launched: list[SamplerProcess] = []  # not yet listened to
        self._processes: set[SamplerProcess] = set()
        self._streams = Streams(self._processes)
        self._keepers: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._link = -1  # by which the processes share the bandwidth
        self._started = 0
        self._restarts = 0
        self._last_end = ""

    @property
    def pids(self) -> list[int]:
        """Of the processes that are alive."""
        return [process.pid for process in self._processes]

    def status(self) -> dict[str, Any]:
        """How the processes fare: how many there should be and are, how often one died and was
        replaced, and why the last did."""
        return {
            "workers": self._workers,
            "alive": len(self._processes),
            "restarts": self._restarts,
            "last_end": self._last_end,
        }

    def launch(self) -> None:
        """Needs no event loop. ConfigError, and none is left, if they cannot be started."""
        if self._workers:
            end_marked(self._name)
        self._link = os.memfd_create("cachecd-link")
        os.truncate(self._link, SIZE)
        try:
            for _ in range(self._workers):
                self._launched.append(self._launch_one())
        except OSError as error:
            self.abandon()
            raise ConfigError(
                f"sampler.python: cannot start {self._command[0]}: {error}"
            ) from error

    async def start(self, report: Callable[[FromStream], None]) -> None:
        """They are launched, if that was not done, and given what is sent from now on. What is said of
        streams goes to `report`. ConfigError as of `launch`."""
        if self._link < 0:
            self.launch()
        self._streams.report = report
        while self._launched:
            process = self._launched[-1]
            await self._connect(process)
            self._launched.pop()
            self._keep(self._look_after(process))

    def abandon(self) -> None:
        """Ends what was launched and is not started. Idempotent."""
        while self._launched:
            self._launched.pop().abandon()
        if self._link >= 0:
            os.close(self._link)
            self._link = -1

    def reload(self, setup: Setup, workers: int) -> None:
        """Has processes work by another setup, and changes their number. Each is replaced, and its streams
        fail, which is nobody's fault."""
        self._setup = messages.pack(setup)
        more, self._workers = workers - self._workers, workers
        for process in tuple(self._processes):
            if not process.retired:
                process.retire("sampler process replaced: the configuration was reloaded")
        for _ in range(more):
            self._keep(self._look_after(None))

    def send(self, message: OfStreams) -> None:
        if not self._closing.is_set():
            self._streams.send(message)

    async def close(self, grace: float) -> None:
        """Ends all processes, those that have not ended by themselves after `grace` seconds by force.

        Afterwards none is left, nor are their temporary files, and nothing more is reported.
        """
        self._closing.set()
        self._streams.report = lambda message: None
        for process in self._processes:
            process.hang_up()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=grace)
        for process in self._processes:
            process.kill()
        await asyncio.gather(*self._keepers)
        if self._started:
            end_marked(self._name)
        self.abandon()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Has it done, by the end of `close` at the latest."""
        task = asyncio.ensure_future(work)
        self._keepers.add(task)
        task.add_done_callback(self._keepers.discard)

    def _launch_one(self) -> SamplerProcess:
        self._started += 1
        environ = os.environ if self._environ is None else self._environ
        marked = {**environ, MARK: mark_of(self._name, self._started)}
        return SamplerProcess(self._command, marked, self._started, self._link, self._setup)

    async def _connect(self, process: SamplerProcess) -> None:
        await process.connect()
        self._processes.add(process)
        if self._closing.is_set():
            process.hang_up()
        self._streams.place()

    async def _look_after(self, process: SamplerProcess | None) -> None:
        """Looks after one process, or the first that it starts, and, when it has died, its successors."""
        pause = 0.0
        while True:
            try:
                useful = process is None or await self._attend(process)
            except Exception as error:
                assert process is not None
                _log.exception("supervision of a sampler process failed", pid=process.pid)
                useful = False
                await self._give_up(
                    process, f"its supervision failed: {type(error).__name__}: {error}"
                )
            pause = 0.0 if useful else _longer(pause)
            while True:
                await self._sleep(pause)
                if self._closing.is_set() or len(self._processes) >= self._workers:
                    return
                try:
                    process = self._launch_one()
                    await self._connect(process)
                    break
                except Exception as error:
                    if not isinstance(error, OSError):
                        _log.exception("sampler process not started")
                    self._last_end = f"cannot start {self._command[0]}: {error}"
                    self._stuck(self._last_end)
                    pause = _longer(pause)

    async def _attend(self, process: SamplerProcess) -> bool:
        """Passes on what the process says until it has died; whether it had done anything."""
        done = False
        first: int | None = None  # the unit of a stream that it had in hand first

        def heard(message: FromStream) -> None:
            nonlocal done, first
            if self._closing.is_set():
                return  # what nobody is told of is removed
            match message:
                case Working(unit=unit):
                    first = unit if first is None else first
                    done = done or unit != first
                case Sealed():
                    done = True
                    if memory_of(process.pid) > _TIRED * self._bounds.memory:
                        self._retire(
                            process, "sampler process replaced: its memory was nearly used up"
                        )
                case Failed(cause=cause, reason=reason):
                    done = True
                    if cause == "worker":  # it came upon a defect, and may be damaged itself
                        self._retire(process, reason)
            self._streams.heard(message)

        reason = await process.attend(heard, self._bounds)
        self._processes.discard(process)
        process.close()
        if not self._closing.is_set():
            # Before its files are given up: a child that it forked may write to them.
            end_marked(self._name, process.number)
        why, passing = process.why_retired or reason, process.killed or process.retired
        self._streams.lose(process, why, blame=not process.retired, passing=passing)
        if self._closing.is_set() or process.retired:
            return True
        self._died(process, reason)
        if not done:
            self._stuck(reason)
        return done

    async def _give_up(self, process: SamplerProcess, why: str) -> None:
        """It is killed, and what it had in hand fails: nobody else would say so."""
        self._processes.discard(process)
        await process.end()
        self._streams.lose(process, why, blame=False, passing=False)
        self._died(process, why)
        self._stuck(why)

    def _retire(self, process: SamplerProcess, why: str) -> None:
        """Replaces a process."""
        if not process.retired:
            process.retire(why)
            self._died(process, why)

    def _died(self, process: SamplerProcess, reason: str) -> None:
        _log.warning("sampler process replaced", pid=process.pid, why=reason)
        self._restarts += 1
        self._last_end = reason

    async def _sleep(self, seconds: float) -> None:
        """Unless this closes meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _stuck(self, reason: str) -> None:
        """Fails the streams that wait in vain, if no process is left."""
        if not self._processes:
            self._streams.give_up(f"no sampler process stays alive: {reason}")


def _longer(pause: float) -> float:
    return min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)
