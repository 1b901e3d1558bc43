"""The processes that run user code: their messages, their supervision, their end."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import structlog

from cachecd.model import StreamId
from cachecd.sampler.heartbeat import SIZE, Heartbeat
from cachecd.sampler.messages import (
    FRAMES,
    MAX_FRAME,
    Frames,
    FromStream,
    Kind,
    Message,
    OfStreams,
    Setup,
)

_log = structlog.get_logger("cachecd.executor")

_LAST_WORDS = 1.0  # seconds for a process that is ending to end, and for its pipe to run dry
_LOOK_EVERY = 0.5  # seconds between two looks at its memory and its silence
LONGEST_START = 120.0  # seconds until the first unit is begun: imports may take long
_READ = 1 << 20
# The memory that the end of a process frees, without shared memory and mapped files.
_OWN_MEMORY = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a process: bytes of memory, and seconds of silence while it has work."""

    memory: float = float("inf")
    silence: float = 600.0


class PipeEndError(Exception):
    """A process sends no more messages. Its text is why the process must be killed, "" at EOF."""


class WorkerProcess(Generic[Kind]):
    """A process with these variables, in its own session, and its bounds.

    `name` begins the text that says how it ended. `code`: the user's code that may be at fault.
    """

    frames: Frames[Kind]
    name: str
    code: str

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        bounds: Bounds,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.bounds = bounds
        self.killed = False
        """Whether somebody else has killed it: most likely the kernel, for want of memory."""
        self._buffer = bytearray()
        self._silent_for = 0.0
        self._has_begun = False
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=dict(environ),
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._in, self._out = self._popen.stdin, self._popen.stdout

    @property
    def pause(self) -> float:
        """The seconds between two looks at the process."""
        return min(_LOOK_EVERY, self.bounds.silence / 8)

    def messages(self) -> Iterator[Kind]:
        """Reads what the pipe has, and yields the messages that are complete. PipeEndError."""
        data = os.read(self._out.fileno(), _READ)
        if not data:
            raise PipeEndError
        self._silent_for = 0.0
        *ends, begin = data.split(b"\n")
        for end in ends:
            frame = bytes(self._buffer + end)
            self._buffer.clear()
            try:
                message = self.frames.unpack(frame)
            except Exception as error:  # anything may be in it
                raise self._garbled(frame[:200]) from error
            self._has_begun = True
            yield message
        self._buffer += begin
        if len(self._buffer) > MAX_FRAME:
            raise self._garbled(f"frame of more than {MAX_FRAME} bytes")

    def _garbled(self, message: object) -> PipeEndError:
        error = PipeEndError(
            f"wrote something that is not a message (does a {self.code} write to its pipe?) and "
        )
        error.add_note(f"no message: {message!r:.200}")
        return error

    @property
    def _patience(self) -> float:
        """The longest silence that is allowed now."""
        return self.bounds.silence if self._has_begun else max(self.bounds.silence, LONGEST_START)

    def offence(self, passed: float) -> str:
        """Returns why the process must be killed, or "". `passed`: the seconds without a message since the
        last look. Count pauses, not the clock: nobody is silent while this process was stopped."""
        self._silent_for += passed
        # First: a process that swaps is silent too.
        if memory_of(self.pid) > self.bounds.memory:
            return f"took more than {int(self.bounds.memory) >> 20} MiB of memory (sampler.memory) and "
        if self._silent_for > (patience := self._patience):
            return f"was silent for {patience:g} s (does a {self.code} hang? sampler.unit_timeout) and "
        return ""

    def kill(self) -> None:
        """Kills the process and its group. Until the process is reaped, no other process has its number."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def finish(self, why: str) -> str:
        """Kills the process, unless it ends by itself and `why` is "". Returns how it ended."""
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_LAST_WORDS)
        self.kill()
        status = self._popen.wait()
        self.killed = status == -signal.SIGKILL and not why
        # Without numbers of processes equal ends have equal reasons, and `status` can count them.
        return f"{self.name} {why}{_ending(status, by_us=bool(why))}"


class SamplerProcess(WorkerProcess[Message]):
    """The executor's `number`th process, and its streams.

    `setup` is its first frame. `link` is the file by which the executor's processes share the bandwidth.
    """

    frames, name, code = FRAMES, "sampler process", "transform"

    def __init__(
        self,
        command: tuple[str, ...],
        environ: Mapping[str, str],
        number: int,
        link: int,
        setup: Setup,
    ) -> None:
        self.streams: set[StreamId] = set()
        """Those that it carries, or that it has not answered a Close of."""
        self.retired = False
        """Told to end, and to be replaced without a pause."""
        self.why_retired = ""
        # The process writes the number of the unit in hand there, and whatever kills it, it can be
        # read: a crash must not be blamed on a neighbour.
        progress = os.memfd_create("cachecd-progress")
        try:
            os.truncate(progress, SIZE)
            self._progress = mmap.mmap(progress, SIZE)
            self._mark = Heartbeat(self._progress)
            self._mark.clear()
            super().__init__(
                [*command, str(progress), str(link)],
                environ,
                Bounds(setup.memory),
                (progress, link),
            )
        finally:
            os.close(progress)
        self.number = number
        self.setup = setup
        frame = FRAMES.pack(setup)
        self._unsaid = frame[self._say(frame) :]
        self._marked = b""

    def _say(self, setup: bytes) -> int:
        """Writes as much of the frame as the pipe takes, so that the process can begin before `connect`."""
        os.set_blocking(self._in.fileno(), False)
        try:
            return os.write(self._in.fileno(), setup)
        except OSError:  # it has ended already, which its reader reports
            return 0

    async def connect(self) -> None:
        """Connects its stdin to the event loop, and sends the rest of the first frame."""
        loop = asyncio.get_running_loop()
        self._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._in)
        self._writing.write(self._unsaid)

    def unit_of(self, stream: StreamId) -> int | None:
        """Returns the unit in work, if it belongs to this stream. Also for a closed process."""
        return self._mark.unit_of(stream)

    @property
    def key(self) -> str:
        """The key of the unit in work, "" if there is none. Also for a closed process."""
        return self._mark.key

    def tell(self, message: OfStreams) -> None:
        """Sends a message about a stream."""
        if not self.streams:
            self._silent_for = 0.0
        self._writing.write(FRAMES.pack(message))

    def retire(self, why: str) -> None:
        """Asks the process to end, to be replaced without a pause."""
        self.retired, self.why_retired = True, why
        self._silent_for = 0.0
        self.hang_up()

    def hang_up(self) -> None:
        """Closes the process's stdin, which asks it to end."""
        if not self._writing.is_closing():  # asyncio's transports cannot be aborted twice
            self._writing.abort()

    async def attend(self, heard: Callable[[FromStream], None], silence: float) -> str:
        """Waits until the process has died. Returns how it died; all of its messages were handled by
        then."""
        self.bounds = Bounds(self.setup.memory, silence)
        loop = asyncio.get_running_loop()
        exited = _exit_of(self.pid)
        drained: asyncio.Future[Exception] = loop.create_future()

        def listen() -> None:
            try:
                for message in self.messages():
                    if not isinstance(message, FromStream) or message.stream not in self.streams:
                        raise self._garbled(message)
                    heard(message)
            except Exception as error:
                loop.remove_reader(self._out)
                drained.set_result(error)

        loop.add_reader(self._out, listen)
        ends: set[asyncio.Future[Any]] = {exited, drained}
        why = ""
        try:
            while not (exited.done() or drained.done() or why):
                await asyncio.wait(ends, timeout=self.pause, return_when=asyncio.FIRST_COMPLETED)
                why = self.offence(self.pause)
            if not why:
                await asyncio.wait({exited}, timeout=_LAST_WORDS)
            self.kill()
            await exited
            await asyncio.wait({drained}, timeout=_LAST_WORDS)
        finally:
            self.kill()
            loop.remove_reader(self._out)
        error = drained.result() if drained.done() else PipeEndError()
        fault = str(error) if isinstance(error, PipeEndError) else "sent an invalid message and "
        if fault:
            _log.error("message of a sampler process rejected", pid=self.pid, exc_info=error)
        why = fault or why
        return f"{self.finish(why)}{self._mark.step}"

    def offence(self, passed: float) -> str:
        if (mark := self._mark.read()) != self._marked:
            self._marked, self._silent_for, passed = mark, 0.0, 0.0  # the process works
        if why := super().offence(passed):
            return why
        if self.retired and self._silent_for > _LAST_WORDS:
            return "did not end in time and "
        return ""

    @property
    def _patience(self) -> float:
        self._has_begun = self._mark.unit is not None
        return super()._patience if self.streams else float("inf")

    def abandon(self) -> None:
        """Kills a process that was never connected, and frees its resources."""
        self.kill()
        self._popen.communicate()
        self._progress.close()

    async def end(self) -> None:
        """Kills the process, and frees its resources."""
        self.kill()
        await _exit_of(self.pid)
        self._popen.wait()
        self.close()

    def close(self) -> None:
        """Frees the process's resources. The process must be dead. Idempotent."""
        self.hang_up()
        self._out.close()
        if not self._progress.closed:
            self._mark = Heartbeat(bytearray(self._progress[:]))
            self._progress.close()


def _exit_of(pid: int) -> asyncio.Future[None]:
    """Returns a future that is done when the child has ended, before the child is reaped."""
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


def memory_of(pid: int) -> int:
    """Returns the bytes that the end of a process would free; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        entries = (line.split() for line in lines if line.startswith(_OWN_MEMORY))
        return sum(int(words[1]) << 10 for words in entries)
    return 0


def _ending(status: int, *, by_us: bool) -> str:
    """Describes the end of a process, from Popen's return code."""
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" and not by_us else ""
    return f"was killed by {name}{hint}"
