"""Sampler processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog

from cachecd.errors import ConfigError
from cachecd.executors import ExecutorStatus
from cachecd.executors.descendants import MARK, end_marked, mark_of
from cachecd.executors.placement import Placement
from cachecd.executors.process import SamplerProcess, memory_of
from cachecd.sampler.messages import Failed, FromStream, Grant, OfStreams, Sealed, Setup, Working
from cachecd.sampler.throttle import SIZE

_log = structlog.get_logger("cachecd.executor")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
_LONGEST_DEATH = 3.0  # seconds after SIGKILL, because a process must free its memory
_REPLACED_FROM = 0.75  # of the memory limit; measured after each shard


class LocalExecutor:
    """Runs streams in `workers` local processes. Each stream is assigned to the process with the fewest
    streams. `path_of` returns the path for a Grant.

    A process is `python -m cachecd.sampler` in its own session, with the environment `environ` and with
    this process's stderr. The defaults are the current interpreter and the environment of this process.
    `launch` starts all processes early, so that they have finished their imports when the first stream
    opens. `start` connects them.

    A process is killed if it exceeds the memory in its setup, or is silent for `silence` seconds while it
    has a stream. (A process shows progress every quarter of a second, unless a transform hangs.) The
    descendants of a dead process are killed. `launch` kills processes that a killed executor with the same
    `name` left behind.

    A process that is close to its memory limit is replaced after a shard, and no failure names a unit. The
    new process starts before the streams fail, so that they continue there: other processes may lack the
    same resource. If a process died before it finished a unit, its successor starts after a pause. The
    pause doubles with each such death in a row, up to 30 s.

    Belongs to one event loop on the main thread, because processes die with the thread that started them.
    """

    def __init__(
        self,
        setup: Setup,
        workers: int,
        python: Path | None,
        path_of: Callable[[Grant], Path],
        environ: Mapping[str, str] | None = None,
        silence: float = 600.0,
        name: str = "",
    ) -> None:
        self._setup = setup
        self._command = (str(python or sys.executable), "-m", "cachecd.sampler")
        self._environ = environ
        self._silence = silence
        self._name = name or f"{id(self):x}"
        self._workers = workers
        self._launched: list[SamplerProcess] = []  # not connected yet
        self._processes: set[SamplerProcess] = set()
        self._streams = Placement(self._processes, path_of)
        self._keepers: set[asyncio.Task[None]] = set()  # one for each process, also while it starts
        self._closing = asyncio.Event()
        self._link = -1  # the file through which the processes share bandwidth
        self._started = 0
        self._restarts = 0
        self._last_end = ""

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that are alive."""
        return [process.pid for process in self._processes]

    def status(self) -> ExecutorStatus:
        alive = len(self._processes)
        return ExecutorStatus(self._workers, alive, self._restarts, self._last_end)

    def launch(self) -> None:
        """Starts the processes. Needs no event loop. ConfigError if a process cannot be started; then no
        process is left."""
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
        """Launches the processes first, if `launch` was not called."""
        if self._link < 0:
            self.launch()
        self._streams.report = report
        while self._launched:
            process = self._launched[-1]
            await self._connect(process)
            self._launched.pop()
            self._keep(self._supervise(process))

    def abandon(self) -> None:
        """Kills processes that were launched and not connected. Idempotent."""
        while self._launched:
            self._launched.pop().abandon()
        if self._link >= 0:
            os.close(self._link)
            self._link = -1

    def reload(self, setup: Setup, workers: int) -> None:
        self._setup, self._workers = setup, workers
        for process in tuple(self._processes):
            self._retire_outdated(process)
        for _ in range(workers - len(self._keepers)):
            self._keep(self._supervise(None))

    def _retire_outdated(self, process: SamplerProcess) -> None:
        if process.setup is not self._setup and not process.retired:
            process.retire("sampler process replaced: the configuration was reloaded")

    def send(self, message: OfStreams) -> None:
        if not self._closing.is_set():
            self._streams.send(message)

    async def close(self, grace: float) -> None:
        self._closing.set()
        self._streams.report = lambda message: None
        for process in self._processes:
            process.hang_up()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=grace)
        for process in self._processes:
            process.kill()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=_LONGEST_DEATH)
        if self._started:
            end_marked(self._name)
        self.abandon()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task that `close` waits for."""
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
        self._retire_outdated(process)  # `reload` may have run while it connected
        if self._closing.is_set():
            process.kill()
        self._streams.place()

    async def _supervise(self, process: SamplerProcess | None) -> None:
        """Supervises a process and its successors. None: starts a process first."""
        pause, worked, fail_streams = 0.0, True, _fail_none
        while True:
            try:
                fail_streams()  # of the predecessor
                if process is not None:
                    worked, fail_streams = await self._serve(process)
            except Exception as error:
                assert process is not None
                _log.exception("supervision of a sampler process failed", pid=process.pid)
                worked = False
                await self._end(process, f"its supervision failed: {type(error).__name__}: {error}")
            pause = 0.0 if worked else _longer(pause)
            while True:
                with contextlib.suppress(
                    TimeoutError
                ):  # the wait ends early if the executor closes
                    await asyncio.wait_for(self._closing.wait(), pause)
                if self._closing.is_set() or len(self._keepers) > self._workers:
                    self._keepers.discard(cast("asyncio.Task[None]", asyncio.current_task()))
                    fail_streams()
                    return
                try:
                    process = self._launch_one()
                    await self._connect(process)
                    break
                except Exception as error:
                    if not isinstance(error, OSError):
                        _log.exception("sampler process not started")
                    self._last_end = f"cannot start {self._command[0]}: {error}"
                    fail_streams()
                    self._fail_waiting(self._last_end)
                    pause = _longer(pause)

    async def _serve(self, process: SamplerProcess) -> tuple[bool, Callable[[], None]]:
        """Delivers the reports of a process until it has died. Returns whether it finished any work, and a
        function that fails its streams."""
        worked = False
        first: int | None = None  # the first unit in work

        def receive(message: FromStream) -> None:
            nonlocal worked, first
            if self._closing.is_set():
                return  # then `close` removes a sealed shard too
            match message:
                case Working(unit=unit):
                    first = unit if first is None else first
                    worked = worked or unit != first
                case Sealed():
                    worked = True
                    if memory_of(process.pid) > _REPLACED_FROM * process.setup.memory:
                        self._retire(
                            process, "sampler process replaced: its memory was nearly used up"
                        )
                case Failed(cause=cause, reason=reason, key=key):
                    worked = True
                    if cause == "worker":  # a defect, which may have damaged the process's memory
                        self._retire(process, reason, key)
            self._streams.receive(message)

        reason = await process.serve(receive, self._silence)
        self._processes.discard(process)
        process.close()
        if not self._closing.is_set():
            # Before the files are deleted, because a forked child may write to them.
            end_marked(self._name, process.number)
        why, passing = process.why_retired or reason, process.killed or process.retired
        blame = not process.retired
        fail_streams = partial(self._streams.lose, process, why, blame=blame, passing=passing)
        if self._closing.is_set() or process.retired:
            return True, fail_streams
        self._died(process, reason, process.key)
        if not worked:  # the successor starts after a pause
            fail_streams()
            self._fail_waiting(reason)
        return worked, fail_streams

    async def _end(self, process: SamplerProcess, why: str) -> None:
        """Kills the process, and fails its streams."""
        self._processes.discard(process)
        await process.end()
        self._streams.lose(process, why, blame=False, passing=False)
        self._died(process, why, process.key)
        self._fail_waiting(why)

    def _retire(self, process: SamplerProcess, why: str, key: str = "") -> None:
        """Replaces a process."""
        if not process.retired:
            process.retire(why)
            self._died(process, why, key)

    def _died(self, process: SamplerProcess, reason: str, key: str) -> None:
        """`key`: the key of the unit in work, or ""."""
        _log.warning("sampler process replaced", pid=process.pid, why=reason, unit=key)
        self._restarts += 1
        self._last_end = f"{reason} (unit {key})" if key else reason

    def _fail_waiting(self, reason: str) -> None:
        """Fails the streams that wait for a process, if no process is left."""
        if not self._processes:
            self._streams.fail_waiting(f"no sampler process stays alive: {reason}")


def _fail_none() -> None: ...


def _longer(pause: float) -> float:
    return min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)
