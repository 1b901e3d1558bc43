"""Sampler processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from cachecd.errors import ConfigError
from cachecd.sampler import messages
from cachecd.sampler.draft import discard
from cachecd.sampler.messages import Failed, FromSampler, Made, Make, Setup

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
_LAST_WORDS = 1.0  # seconds for a process that is ending to end, and for its pipe to run dry
_NO_UNIT = struct.pack("<q", -1)


class LocalExecutor:
    """Runs up to `workers` assignments at once, each in a process of its own.

    A process is `python` (this interpreter, if None) `-m cachecd.sampler` in a session of its own,
    with the variables `environ` (this process's, if None) and this process's stderr. All are started
    by `start`, so that their imports are done by the time the first assignment comes.

    A process that dies is replaced, and its assignment is Failed with the unit it was working on.
    So is one that has been silent for `silence` seconds with an assignment in hand: it says something
    every quarter of a second, unless a transform hangs. What it started dies with it. One that died
    before it had done any assignment is replaced after a pause, which doubles up to 30 s.

    Belongs to one event loop, on the main thread: the processes die with the thread that starts them.
    """

    def __init__(
        self,
        setup: Setup,
        workers: int,
        python: Path | None,
        deliver: Callable[[FromSampler], None],
        environ: Mapping[str, str] | None = None,
        silence: float = 600.0,
    ) -> None:
        self._setup = messages.pack(setup)
        self._command = (str(python or sys.executable), "-m", "cachecd.sampler")
        self._environ = environ
        self._silence = silence
        self._deliver = deliver
        self._workers = workers
        self._waiting: deque[Make] = deque()
        self._processes: set[_Process] = set()
        self._keepers: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """Of the processes that are alive."""
        return [process.pid for process in self._processes]

    async def start(self) -> None:
        try:
            for _ in range(self._workers):
                process = await self._start_one()
                self._keepers.add(asyncio.create_task(self._keep(process)))
        except OSError as error:
            await self.close(0)
            raise ConfigError(
                f"sampler.python: cannot start {self._command[0]}: {error}"
            ) from error

    def submit(self, make: Make) -> None:
        self._waiting.append(make)
        self._dispatch()

    async def close(self, grace: float) -> None:
        self._closing.set()
        self._waiting.clear()
        for process in self._processes:
            process.hang_up()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=grace)
        for process in self._processes:
            process.kill()
        await asyncio.gather(*self._keepers)

    def _dispatch(self) -> None:
        """Gives what waits to those that have nothing to do."""
        for process in self._processes:
            if self._waiting and process.make is None:
                process.give(self._waiting.popleft())

    async def _start_one(self) -> _Process:
        process = _Process(self._command, self._environ)
        await process.connect(self._setup)
        self._processes.add(process)
        if self._closing.is_set():
            process.hang_up()
        self._dispatch()
        return process

    async def _keep(self, process: _Process) -> None:
        """Looks after one process and, when it has died, its successors."""
        pause = 0.0
        while True:
            pause = 0.0 if await self._attend(process) else _longer(pause)
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause)
                if self._closing.is_set():
                    return
                try:
                    process = await self._start_one()
                    break
                except OSError as error:
                    self._stuck(f"cannot start {self._command[0]}: {error}")
                    pause = _longer(pause)

    async def _attend(self, process: _Process) -> bool:
        """Passes on what the process says until it has died; whether it had done any assignment."""
        done = 0

        def heard(message: FromSampler) -> None:
            nonlocal done
            if self._closing.is_set():
                return  # what nobody is told of is removed
            if isinstance(message, (Made, Failed)):
                process.make = None
                done += 1
            self._deliver(message)
            self._dispatch()

        reason = await process.attend(heard, self._silence)
        self._processes.discard(process)
        make, unit = process.make, process.unit
        process.close()
        if make is not None:
            discard(make.path)
        if self._closing.is_set():
            return True
        _log.warning("%s", reason)
        if make is not None:
            self._deliver(Failed(make.assignment.shard, "worker", reason, unit=unit))
        elif not done:
            self._stuck(reason)
        return done > 0

    def _stuck(self, reason: str) -> None:
        """Answers one assignment that waits in vain, if no process is left to do it."""
        if self._waiting and not self._processes:
            shard = self._waiting.popleft().assignment.shard
            self._deliver(Failed(shard, "worker", f"no sampler process stays alive: {reason}"))


class _Process:
    """One sampler process, and what it has in hand."""

    def __init__(self, command: tuple[str, ...], environ: Mapping[str, str] | None) -> None:
        self.make: Make | None = None
        # The process writes the number of the unit in hand there, and whatever kills it, it can be
        # read: a crash must not be blamed on a neighbour.
        self._progress = os.memfd_create("cachecd-progress")
        os.pwrite(self._progress, _NO_UNIT, 0)
        try:
            self._popen = subprocess.Popen(
                [*command, str(self._progress)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=None if environ is None else dict(environ),
                pass_fds=(self._progress,),
                start_new_session=True,
            )
        except OSError:
            os.close(self._progress)
            raise
        self.pid = self._popen.pid
        self._heard_at = 0.0

    async def connect(self, setup: bytes) -> None:
        """Connects the pipes to the event loop, and says the first frame."""
        loop = asyncio.get_running_loop()
        self._replies = asyncio.StreamReader()
        self._reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._replies), self._popen.stdout
        )
        self._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._popen.stdin)
        self._writing.write(setup)

    @property
    def unit(self) -> int | None:
        """The unit in hand, as the process last wrote it down."""
        (unit,) = struct.unpack("<q", os.pread(self._progress, 8, 0))
        known = self.make is not None and any(u.unit == unit for u in self.make.assignment.units)
        return unit if known else None

    def give(self, make: Make) -> None:
        """Has it do an assignment. It must have none."""
        os.pwrite(self._progress, _NO_UNIT, 0)
        self.make = make
        self._heard_at = asyncio.get_running_loop().time()
        self._writing.write(messages.pack(make))

    def hang_up(self) -> None:
        """EOF: it is to end."""
        if not self._writing.is_closing():  # asyncio's transports cannot be aborted twice
            self._writing.abort()

    def kill(self) -> None:
        """Kills it and all that it started. Its number cannot be another's yet: it is not reaped."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def attend(self, heard: Callable[[FromSampler], None], silence: float) -> str:
        """Until it has died; how it did. Everything it said has been heard then."""
        exited = _exit_of(self.pid)
        listening = asyncio.create_task(self._listen(heard))
        hung = False
        try:
            while not (exited.done() or listening.done() or hung):
                await asyncio.wait(
                    {exited, listening}, timeout=silence / 8, return_when=asyncio.FIRST_COMPLETED
                )
                now = asyncio.get_running_loop().time()
                hung = self.make is not None and now - self._heard_at > silence
            if not hung:
                await asyncio.wait({exited}, timeout=_LAST_WORDS)
            self.kill()
            await exited
            await asyncio.wait({listening}, timeout=_LAST_WORDS)
        finally:
            self.kill()
            listening.cancel()
        await asyncio.wait({listening})
        if not listening.cancelled() and (error := listening.exception()):
            _log.error("sampler process %d was not understood", self.pid, exc_info=error)
        silent = f"said nothing for {silence:g} s (does a transform hang?) and " if hung else ""
        return f"sampler process {self.pid} {silent}{_end(self._popen.wait())}"

    async def _listen(self, heard: Callable[[FromSampler], None]) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                length = int.from_bytes(await self._replies.readexactly(4), "little")
                message = messages.unpack(await self._replies.readexactly(length))
                self._heard_at = asyncio.get_running_loop().time()
                assert not isinstance(message, (Setup, Make))
                heard(message)

    def close(self) -> None:
        """Frees what it had. It must be dead."""
        self.hang_up()
        self._reading.close()
        os.close(self._progress)


def _longer(pause: float) -> float:
    return min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)


def _exit_of(pid: int) -> asyncio.Future[None]:
    """Done when the child has ended, before it is reaped."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    handle = os.pidfd_open(pid)

    def on_exit() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(handle, on_exit)
    return ended


def _end(status: int) -> str:
    """How a process ended, from Popen's return code."""
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
