"""The processes that run user code: sends and receives messages, checks limits, and ends the processes."""

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

_LONGEST_EXIT = 1.0  # seconds for a process to exit, and for the last messages in its pipe
_CHECK_EVERY = 0.5  # seconds between two checks of memory and silence
_LONGEST_START = 120.0  # seconds of silence before the first unit, because imports may take long
_READ = 1 << 20
# Fields in /proc/PID/status of memory that the kernel frees when the process ends: not mapped files.
_OWN_MEMORY = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a process: bytes of memory, and seconds of silence while it has work."""

    memory: float = float("inf")
    silence: float = 600.0


class PipeEndError(Exception):
    """A process sends no more messages. The text is the reason to kill the process, or "" at EOF."""


class WorkerProcess(Generic[Kind]):
    """A process in its own session, with the environment `environ`.

    Messages about the process begin with `name`. `code`: the kind of user code that may be at fault.
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
        """Whether another process killed it, most likely the kernel, because the machine lacked memory."""
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
        """The seconds between two checks of the process."""
        return min(_CHECK_EVERY, self.bounds.silence / 8)

    def messages(self) -> Iterator[Kind]:
        """Reads the pipe once, and yields the complete messages. PipeEndError."""
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
            except Exception as error:  # the pipe may contain anything
                raise self._invalid(frame[:200]) from error
            self._has_begun = True
            yield message
        self._buffer += begin
        if len(self._buffer) > MAX_FRAME:
            raise self._invalid(f"frame of more than {MAX_FRAME} bytes")

    def _invalid(self, message: object) -> PipeEndError:
        error = PipeEndError(
            f"wrote something that is not a message (does a {self.code} write to its pipe?) and "
        )
        error.add_note(f"no message: {message!r:.200}")
        return error

    @property
    def _patience(self) -> float:
        """The longest silence that is allowed now."""
        return self.bounds.silence if self._has_begun else max(self.bounds.silence, _LONGEST_START)

    def violation(self, waited: float) -> str:
        """Returns the reason to kill the process, or "". `waited`: the seconds of waiting without a message
        since the last check. Time in which this process was stopped does not count as silence."""
        self._silent_for += waited
        # Checks the memory first, because a process that swaps is silent too.
        if memory_of(self.pid) > self.bounds.memory:
            return f"took more than {int(self.bounds.memory) >> 20} MiB of memory (sampler.memory) and "
        if self._silent_for > (patience := self._patience):
            return f"was silent for {patience:g} s (does a {self.code} hang? sampler.unit_timeout) and "
        return ""

    def kill(self) -> None:
        """Kills the process and its group. This hits no other process, because the kernel does not reuse
        the PID before this process is reaped."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def finish(self, why: str) -> str:
        """Ends the process, and returns how it ended. If `why` is "", the process may first exit by
        itself."""
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_LONGEST_EXIT)
        self.kill()
        status = self._popen.wait()
        self.killed = status == -signal.SIGKILL and not why
        # The reason contains no process id, so that `status` can count equal reasons.
        return f"{self.name} {why}{_ending(status, by_us=bool(why))}"


class SamplerProcess(WorkerProcess[Message]):
    """The executor's process `number`, and its streams.

    `setup` is the first message. `link`: the file through which the executor's processes share bandwidth.
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
        """The streams that it runs. A stream with a pending Close still belongs to the process."""
        self.retired = False
        """Whether the executor asked the process to end, to replace it without a pause."""
        self.why_retired = ""
        # The process writes the number of the unit in work there. The file stays readable after any crash,
        # so that the executor blames the right unit.
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
        self._marked = b""
        # Writes as much as the pipe takes, so that the process can begin before `connect`.
        self._unsent = FRAMES.pack(setup)
        os.set_blocking(self._in.fileno(), False)
        with contextlib.suppress(OSError):  # the process has ended: `serve` reports that
            self._unsent = self._unsent[os.write(self._in.fileno(), self._unsent) :]

    async def connect(self) -> None:
        """Connects the process's stdin to the event loop, and sends the rest of the setup."""
        loop = asyncio.get_running_loop()
        self._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._in)
        self._writing.write(self._unsent)

    def unit_of(self, stream: StreamId) -> int | None:
        """Returns the unit in work, if it belongs to this stream. May be called after `close`."""
        return self._mark.unit_of(stream)

    @property
    def key(self) -> str:
        """The key of the unit in work, or "". May be read after `close`."""
        return self._mark.key

    def send(self, message: OfStreams) -> None:
        """Sends a message about a stream."""
        if not self.streams:
            self._silent_for = 0.0
        self._writing.write(FRAMES.pack(message))

    def retire(self, why: str) -> None:
        """Asks the process to end. The executor replaces it without a pause."""
        self.retired, self.why_retired = True, why
        self._silent_for = 0.0
        self.hang_up()

    def hang_up(self) -> None:
        """Closes the process's stdin, so that the process ends."""
        if not self._writing.is_closing():  # asyncio's transports cannot be aborted twice
            self._writing.abort()

    async def serve(self, report: Callable[[FromStream], None], silence: float) -> str:
        """Calls `report` with each message until the process has died. Returns how it died."""
        self.bounds = Bounds(self.setup.memory, silence)
        loop = asyncio.get_running_loop()
        exited = _exit_of(self.pid)
        drained: asyncio.Future[Exception] = loop.create_future()

        def listen() -> None:
            try:
                for message in self.messages():
                    if not isinstance(message, FromStream) or message.stream not in self.streams:
                        raise self._invalid(message)
                    report(message)
            except Exception as error:
                loop.remove_reader(self._out)
                drained.set_result(error)

        loop.add_reader(self._out, listen)
        ends: set[asyncio.Future[Any]] = {exited, drained}
        why = ""
        try:
            while not (exited.done() or drained.done() or why):
                await asyncio.wait(ends, timeout=self.pause, return_when=asyncio.FIRST_COMPLETED)
                why = self.violation(self.pause)
            if not why:
                await asyncio.wait({exited}, timeout=_LONGEST_EXIT)
            self.kill()
            await exited
            await asyncio.wait({drained}, timeout=_LONGEST_EXIT)
        finally:
            self.kill()
            loop.remove_reader(self._out)
        error = drained.result() if drained.done() else PipeEndError()
        rejected = str(error) if isinstance(error, PipeEndError) else "sent an invalid message and "
        if rejected:
            _log.error("message of a sampler process rejected", pid=self.pid, exc_info=error)
        return f"{self.finish(rejected or why)}{self._mark.step}"

    def violation(self, waited: float) -> str:
        if (mark := self._mark.read()) != self._marked:
            self._marked, self._silent_for, waited = mark, 0.0, 0.0  # the process works
        if why := super().violation(waited):
            return why
        if self.retired and self._silent_for > _LONGEST_EXIT:
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
    """Returns a future that is done when the child has ended. The child is not reaped."""
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
    """Returns the bytes that the kernel frees when the process ends; 0 if it has ended."""
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
