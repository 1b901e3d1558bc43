"""Lists the units of sources: in this process, or, if the store's replies are not enough, in a lister
process."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceUnreachableError
from cachecd.executors.descendants import MARK, end_marked, mark_of
from cachecd.executors.process import LONGEST_START, Bounds, ending, kill, memory_of
from cachecd.model import ObjectInfo
from cachecd.sampler import messages
from cachecd.stores.backend import LeftOut
from cachecd.stores.fetch import Store
from cachecd.stores.key_ranges import Lanes
from cachecd.stores.sweep import ListingSweep
from cachecd.units.lister import ListingRefused, Question, Reply, unpack
from cachecd.units.source_units import list_units, needs_a_process, sweep_units
from cachecd.units.unit_store import open_unit_store

_LOOK_EVERY = 0.5  # seconds between two looks at its memory and its silence
_LAST_WORDS = 1.0  # seconds for a process whose pipe has ended to end
_READ = 1 << 20


class ProcessLister:
    """Lists sources. Several calls may run at a time.

    If the store's own listing names the units, the caller's thread lists them. Otherwise a process `python
    -m cachecd.units.lister` does (`python` None: this interpreter), with the variables `environ` (None:
    those of this process), and with this process's stderr and working directory. The process and everything
    that it started end with its iterator and with the caller's thread. The constructor ends processes that
    a killed process of the same `name` left. A process is ended if it exceeds the memory of `bounds`, or is
    silent for longer than `bounds` allow while a caller waits. `path`: directories that are searched first
    for imports.
    """

    def __init__(
        self,
        connections: int,
        python: Path | None = None,
        name: str = "",
        bounds: Bounds | None = None,
        environ: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
    ) -> None:
        self._connections = connections
        self._path = [str(folder) for folder in path]
        self._command = (str(python or sys.executable), "-m", "cachecd.units.lister")
        self._owner = f"{name or f'{os.getpid()}-{id(self):x}'}/lister"
        self._bounds = bounds or Bounds()
        self._environ = environ
        self._numbers = itertools.count(1)
        self._closed = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._changing = threading.Lock()
        if name:
            end_marked(self._owner)

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        """Yields pages of the source's units, or only of the units after the key `after`. `left_out` counts
        what is left out. Blocks.

        SourceUnreachableError: the message says what to do. ConfigError: the message says what is wrong
        with the configuration. The caller must close the iterator if it does not read it to its end.
        """
        if needs_a_process(source):
            yield from self._apart(source, after, left_out or LeftOut())
        else:
            yield from list_units(source, self._store(source, left_out), after)

    def sweep(
        self, source: SourceConfig, lanes: Lanes, left_out: LeftOut | None = None
    ) -> ListingSweep | None:
        """The same by several requests at a time (stores/key_ranges.py); None if the store cannot be
        listed so."""
        if needs_a_process(source):
            return None
        return sweep_units(source, self._store(source, left_out), lanes)

    def _store(self, source: SourceConfig, left_out: LeftOut | None) -> Store:
        return open_unit_store(source, self._connections, left_out=left_out)

    def reload(self, connections: int, bounds: Bounds) -> None:
        """Changes the connections and the bounds of listings that begin from now on."""
        self._connections, self._bounds = connections, bounds

    def close(self) -> None:
        """Ends all processes. Waiting callers get SourceUnreachableError."""
        with self._changing:
            self._closed = True
            for process in self._running:
                kill(process)
        end_marked(self._owner)

    def _apart(
        self, source: SourceConfig, after: str, left_out: LeftOut
    ) -> Iterator[list[ObjectInfo]]:
        number = next(self._numbers)
        process = self._start(number)
        try:
            named = source.model_dump(mode="json")
            answers = _Answers(process, self._bounds, source.reader)
            about = vars(left_out)
            answers.ask(Question(named, self._connections, after, about, self._path).pack())
            while (reply := answers.next()) is not None:
                if isinstance(reply, ListingRefused):
                    by_user = reply.cause == "configuration"
                    raise (ConfigError if by_user else SourceUnreachableError)(reply.reason)
                if isinstance(reply, LeftOut):
                    about.update(vars(reply))
                elif reply:
                    yield reply
        finally:
            with self._changing:
                self._running.discard(process)
                kill(process)
            process.wait()  # without the lock, because `close` must not wait for it
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            end_marked(self._owner, number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        environ = os.environ if self._environ is None else self._environ
        with self._changing:
            if self._closed:
                raise SourceUnreachableError("the listing was stopped: the daemon ends")
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env={**environ, MARK: mark_of(self._owner, number)},
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(
                    f"sampler.python: cannot start {self._command[0]}: {error}"
                ) from error
            self._running.add(process)
        return process


class _Answers:
    """The messages of a lister process, in order."""

    def __init__(
        self, process: subprocess.Popen[bytes], bounds: Bounds, reader: str | None
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._bounds = process, bounds
        self._name = f"the process that lists its units{(reader and f' by {reader}') or ''}"
        self._in, self._out = process.stdin, process.stdout.fileno()
        self._buffer = bytearray()
        self._started = False

    def ask(self, question: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # `next` reports how the process ended
            self._in.write(question)

    def next(self) -> Reply:
        """Returns the next message. SourceUnreachableError: the process ended, was silent, or sent an
        invalid message."""
        garbled = "wrote something that is not a message (does a reader write to its pipe?) and "
        length = int.from_bytes(self._take(4), "little")
        if length > messages.MAX_FRAME:
            self._refuse(garbled)
        body = self._take(length)
        self._started = True
        try:
            return unpack(body)
        except (ValueError, TypeError, KeyError):
            self._refuse(garbled)

    def _take(self, count: int) -> bytes:
        ready = select.poll()
        ready.register(self._out, select.POLLIN)
        silent_for = 0.0
        self._look(silent_for)
        while len(self._buffer) < count:
            pause = min(_LOOK_EVERY, self._bounds.silence / 8)
            if not ready.poll(pause * 1000):
                # In pauses, not by the clock: nobody is silent while this process was stopped.
                silent_for += pause
                self._look(silent_for)
                continue
            silent_for = 0.0
            data = os.read(self._out, _READ)
            if not data:
                self._refuse("")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _look(self, silent_for: float) -> None:
        patience = self._bounds.silence
        if not self._started:
            patience = max(patience, LONGEST_START)
        if silent_for > patience:
            self._refuse(
                f"was silent for {patience:g} s (does a reader hang? sampler.unit_timeout) and "
            )
        if memory_of(self._process.pid) > self._bounds.memory:
            self._refuse(
                f"took more than {int(self._bounds.memory) >> 20} MiB of memory (sampler.memory) and "
            )

    def _refuse(self, why: str) -> NoReturn:
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS)
        kill(self._process)
        end = ending(self._process.wait(), by_us=bool(why))
        raise SourceUnreachableError(f"{self._name} {why}{end}")
