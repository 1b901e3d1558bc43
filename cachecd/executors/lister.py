"""Lists the units of sources: in this process, or in a lister process if the store's own listing is not
enough."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceUnreachableError
from cachecd.executors.descendants import MARK, end_marked, mark_of
from cachecd.executors.process import Bounds, PipeEndError, WorkerProcess
from cachecd.model import ObjectInfo
from cachecd.stores.backend import LeftOut
from cachecd.stores.fetch import Store
from cachecd.stores.key_ranges import Lanes
from cachecd.stores.sweep import ListingSweep
from cachecd.units.lister import QUESTIONS, REPLIES, Ended, Page, Question, Refused, Reply
from cachecd.units.source_units import list_units, needs_a_process, sweep_units
from cachecd.units.unit_store import open_unit_store


class ProcessLister:
    """Lists sources. Calls may run concurrently.

    If the store's own listing names the units, the caller's thread lists them. Otherwise a process `python
    -m cachecd.units.lister` does (`python` None: the current interpreter). It has the environment `environ`
    (None: the environment of this process), and this process's stderr and working directory. The process
    and its descendants are killed when the iterator is closed, or when the caller's thread ends.

    A process is also killed if it takes more memory than `bounds` allow, or is silent for too long while a
    caller waits. The constructor kills processes that a killed daemon with the same `name` left behind.
    `path`: directories that imports search first.
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
        self._running: set[_ListerProcess] = set()
        self._changing = threading.Lock()
        if name:
            end_marked(self._owner)

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        """Yields the source's units in pages, or only the units after the key `after`. `left_out` counts
        the omitted objects. Blocks.

        SourceUnreachableError: the message says what to do. ConfigError: the message says what is wrong
        with the configuration. The caller must close the iterator if it does not read it to its end.
        """
        if needs_a_process(source):
            yield from self._in_process(source, after, left_out or LeftOut())
        else:
            yield from list_units(source, self._store(source, left_out), after)

    def sweep(
        self, source: SourceConfig, lanes: Lanes, left_out: LeftOut | None = None
    ) -> ListingSweep | None:
        """Lists the units with concurrent requests (stores/key_ranges.py); None if the store does not
        support that."""
        if needs_a_process(source):
            return None
        return sweep_units(source, self._store(source, left_out), lanes)

    def _store(self, source: SourceConfig, left_out: LeftOut | None) -> Store:
        return open_unit_store(source, self._connections, left_out=left_out)

    def reload(self, connections: int, bounds: Bounds) -> None:
        """Changes the connections and the bounds of later listings."""
        self._connections, self._bounds = connections, bounds

    def close(self) -> None:
        """Kills all processes. Waiting callers get SourceUnreachableError."""
        with self._changing:
            self._closed = True
            for process in self._running:
                process.kill()
        end_marked(self._owner)

    def _in_process(
        self, source: SourceConfig, after: str, left_out: LeftOut
    ) -> Iterator[list[ObjectInfo]]:
        number = next(self._numbers)
        process = self._start(source, number)
        keys = source.model_dump(mode="json")
        question = Question(keys, self._connections, after, left_out, self._path)
        try:
            for reply in process.replies(question):
                match reply:
                    case Page(units) if units:
                        yield units
                    case LeftOut():
                        vars(left_out).update(vars(reply))
                    case Refused(cause, reason):
                        is_config = cause == "configuration"
                        raise (ConfigError if is_config else SourceUnreachableError)(reason)
                    case Ended():
                        return
        finally:
            with self._changing:
                self._running.discard(process)
                process.kill()
            process.close()  # outside the lock, so that `close` does not wait
            end_marked(self._owner, number)

    def _start(self, source: SourceConfig, number: int) -> _ListerProcess:
        environ = os.environ if self._environ is None else self._environ
        marked = {**environ, MARK: mark_of(self._owner, number)}
        with self._changing:
            if self._closed:
                raise SourceUnreachableError("the listing was stopped, because the daemon ends")
            try:
                process = _ListerProcess(self._command, marked, self._bounds)
            except OSError as error:
                raise ConfigError(
                    f"sampler.python: cannot start {self._command[0]}: {error}"
                ) from error
            process.name += f" by {source.reader}" if source.reader else ""
            self._running.add(process)
        return process


class _ListerProcess(WorkerProcess[Reply]):
    """A process that lists the units of one source."""

    frames, name, code = REPLIES, "the process that lists its units", "reader"

    def replies(self, question: Question) -> Iterator[Reply]:
        """Sends the question, and yields the replies. SourceUnreachableError: the process ended, exceeded
        its bounds while the caller waited, or sent an invalid message."""
        ready = select.poll()
        ready.register(self._out, select.POLLIN)
        waited, why = 0.0, ""
        with contextlib.suppress(BrokenPipeError):  # the loop below reports that the process ended
            self._in.write(QUESTIONS.pack(question))
        try:
            while not (why := self.violation(waited)):
                waited = 0.0 if ready.poll(self.pause * 1000) else self.pause
                if not waited:
                    yield from self.messages()
        except PipeEndError as end:
            why = str(end)
        raise SourceUnreachableError(self.finish(why))

    def close(self) -> None:
        """Waits for the killed process, and closes its pipes."""
        self._popen.wait()
        self._in.close()
        self._out.close()
