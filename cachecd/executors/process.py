"""One sampler process: its messages, its supervision, its end."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from cachecd.model import StreamId
from cachecd.sampler import messages
from cachecd.sampler.heartbeat import SIZE, Heartbeat
from cachecd.sampler.messages import FromStream, OfStreams, Setup

_log = structlog.get_logger("cachecd.executor")

_LAST_WORDS = 1.0  # seconds for a process that is ending to end, and for its pipe to run dry
_LOOK_EVERY = 0.5  # seconds between two looks at its memory and its silence
LONGEST_START = 120.0  # seconds until the first unit is begun: imports may take long
# The memory that the end of a process frees, without shared memory and mapped files.
_OWN_MEMORY = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a process: bytes of memory, and seconds of silence while it has work."""

    memory: float = float("inf")
    silence: float = 600.0


class _GarbledError(Exception):
    """The bytes from the pipe are not a message of a sampler."""


class SamplerProcess:
    """A process with these variables, the executor's `number`th, and its streams.

    `setup` is its first frame. `link` is the file by which the executor's processes share the bandwidth.
    """

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
        self.killed = False
        """Whether somebody else has killed it: most likely the kernel, for want of memory."""
        # The process writes the number of the unit in hand there, and whatever kills it, it can be
        # read: a crash must not be blamed on a neighbour.
        progress = os.memfd_create("cachecd-progress")
        try:
            os.truncate(progress, SIZE)
            self._progress = mmap.mmap(progress, SIZE)
            self._mark = Heartbeat(self._progress)
            self._mark.clear()
            self._popen = subprocess.Popen(
                [*command, str(progress), str(link)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=dict(environ),
                pass_fds=(progress, link),
                start_new_session=True,
            )
        finally:
            os.close(progress)
        self.pid = self._popen.pid
        self.number = number
        self.setup = setup
        frame = messages.pack(setup)
        self._unsaid = frame[self._say(frame) :]
        self._silent_for = 0.0
        self._marked = b""

    def _say(self, setup: bytes) -> int:
        """Writes as much of the frame as the pipe takes, so that the process can begin before `connect`."""
        assert self._popen.stdin is not None
        os.set_blocking(self._popen.stdin.fileno(), False)
        try:
            return os.write(self._popen.stdin.fileno(), setup)
        except OSError:  # it has ended already, which its reader reports
            return 0

    async def connect(self) -> None:
        """Connects the pipes to the event loop, and sends the rest of the first frame."""
        loop = asyncio.get_running_loop()
        self._replies = asyncio.StreamReader()
        self._reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._replies), self._popen.stdout
        )
        self._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._popen.stdin)
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
        self._writing.write(messages.pack(message))

    def retire(self, why: str) -> None:
        """Asks the process to end, to be replaced without a pause."""
        self.retired, self.why_retired = True, why
        self._silent_for = 0.0
        self.hang_up()

    def hang_up(self) -> None:
        """Closes the process's stdin, which asks it to end."""
        if not self._writing.is_closing():  # asyncio's transports cannot be aborted twice
            self._writing.abort()

    def kill(self) -> None:
        kill(self._popen)

    async def attend(self, heard: Callable[[FromStream], None], silence: float) -> str:
        """Waits until the process has died. Returns how it died; all of its messages were handled by
        then."""
        bounds = Bounds(self.setup.memory, silence)
        exited = _exit_of(self.pid)
        listening = asyncio.create_task(self._listen(heard))
        why = ""
        try:
            while not (exited.done() or listening.done() or why):
                pause = min(_LOOK_EVERY, bounds.silence / 8)
                await asyncio.wait(
                    {exited, listening}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                # In pauses, not by the clock: nobody is silent while nobody listens, as when this
                # process was stopped.
                self._silent_for += pause
                why = self._offence(bounds)
            if not why:
                await asyncio.wait({exited}, timeout=_LAST_WORDS)
            self.kill()
            await exited
            await asyncio.wait({listening}, timeout=_LAST_WORDS)
        finally:
            self.kill()
            listening.cancel()
        await asyncio.wait({listening})
        if not listening.cancelled() and (error := listening.exception()):
            _log.error("message of a sampler process rejected", pid=self.pid, exc_info=error)
            why = why or "sent an invalid message and "
            if isinstance(error, _GarbledError):
                why = "wrote something that is not a message (does a transform write to its pipe?) and "
        status = self._popen.wait()
        self.killed = status == -signal.SIGKILL and not why
        # Without numbers of processes equal ends have equal reasons, and `status` can count them.
        return f"sampler process {why}{ending(status, by_us=bool(why))}{self._mark.step}"

    def _offence(self, bounds: Bounds) -> str:
        """Returns why the process must be killed, or ""."""
        if (mark := self._mark.read()) != self._marked:
            self._marked, self._silent_for = mark, 0.0  # the process works
        # First: a process that swaps is silent too.
        if memory_of(self.pid) > bounds.memory:
            return f"took more than {int(bounds.memory) >> 20} MiB of memory (sampler.memory) and "
        begun = self._mark.unit is not None
        silence = bounds.silence if begun else max(bounds.silence, LONGEST_START)
        if self.streams and self._silent_for > silence:
            return (
                f"was silent for {silence:g} s (does a transform hang? sampler.unit_timeout) and "
            )
        if self.retired and self._silent_for > _LAST_WORDS:
            return "did not end in time and "
        return ""

    async def _listen(self, heard: Callable[[FromStream], None]) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                length = int.from_bytes(await self._replies.readexactly(4), "little")
                if length > messages.MAX_FRAME:
                    raise _GarbledError(f"frame of {length} bytes")
                message = self._unpack(await self._replies.readexactly(length))
                self._silent_for = 0.0
                heard(message)

    def _unpack(self, body: bytes) -> FromStream:
        """Returns a message about a stream that the process runs."""
        try:
            message = messages.unpack(body)
        except Exception as error:  # anything may be in it
            raise _GarbledError(f"no message: {body[:200]!r}") from error
        if isinstance(message, FromStream) and message.stream in self.streams:
            return message
        raise _GarbledError(f"not about a stream that it carries: {body[:200]!r}")

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
        self._reading.close()
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


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and its group. Until the process is reaped, no other process has its number."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def memory_of(pid: int) -> int:
    """Returns the bytes that the end of a process would free; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        entries = (line.split() for line in lines if line.startswith(_OWN_MEMORY))
        return sum(int(words[1]) << 10 for words in entries)
    return 0


def ending(status: int, *, by_us: bool) -> str:
    """Describes the end of a process, from Popen's return code."""
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" and not by_us else ""
    return f"was killed by {name}{hint}"
