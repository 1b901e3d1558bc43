"""Assigns streams to processes, and reports the streams of a process that died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cachecd.executors.process import SamplerProcess
from cachecd.model import StreamId
from cachecd.sampler.draft import discard
from cachecd.sampler.messages import (
    Close,
    Closed,
    Failed,
    FromStream,
    Grant,
    OfStreams,
    Open,
    Sealed,
)


@dataclass(slots=True)
class _PlacedStream:
    """A stream, from its Open until it fails or is closed. `open`: no Close followed the last Open.
    `waiting`: messages that wait for a process. `paths`: files of shards that are granted and not sealed,
    by shard number. `closes`: the same for each Close that has no Closed yet. `failure`: the reported
    failure, if it also ends the process."""

    process: SamplerProcess | None = None
    open: bool = False
    waiting: list[OfStreams] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    closes: deque[dict[int, str]] = field(default_factory=deque)
    failure: Failed | None = None

    def discard(self) -> None:
        """Deletes every granted file that was not reported as sealed."""
        for paths in (self.paths, *self.closes):
            for path in paths.values():
                discard(path)


class Placement:
    """The streams of all processes. `processes`: the processes that are alive. `path_of` returns the path
    for a Grant. `report` is called with each report of a stream."""

    def __init__(
        self, processes: Iterable[SamplerProcess], path_of: Callable[[Grant], Path]
    ) -> None:
        self.report: Callable[[FromStream], None] = lambda message: None
        self._processes, self._path_of = processes, path_of
        self._streams: dict[StreamId, _PlacedStream] = {}
        self._last: SamplerProcess | None = None  # the last process that got a stream

    def send(self, message: OfStreams) -> None:
        """Sends a message to the process of its stream; see Executor.send."""
        stream = self._streams.get(message.stream)
        if stream is None and isinstance(message, Open):
            stream = self._streams[message.stream] = _PlacedStream()
        if stream is None or (stream.process is None and isinstance(message, Close)):
            self._streams.pop(message.stream, None)  # no process runs it
            if isinstance(message, Close):
                self.report(Closed(message.stream))
            return
        match message:
            case Open():
                stream.open = True
            case Close():
                stream.closes.append(stream.paths)
                stream.paths, stream.open = {}, False
            case _ if not stream.open:
                return
            case Grant():
                message = replace(message, path=str(self._path_of(message)))
                stream.paths[message.number] = message.path
        if stream.process is None:
            stream.waiting.append(message)
            self.place()
        elif not stream.process.retired:
            stream.process.send(message)

    def place(self) -> None:
        """Assigns each waiting stream to the process with the fewest streams. If several are equal, chooses
        the process that got the last stream, because early streams may have one unit more than late ones.
        """
        for name, stream in self._streams.items():
            usable = [process for process in self._processes if not process.retired]
            if stream.process is None and usable:
                stream.process = self._last = min(
                    usable, key=lambda each: (len(each.streams), each is not self._last)
                )
                for message in stream.waiting:
                    stream.process.send(message)
                stream.process.streams.add(name)
                stream.waiting.clear()

    def receive(self, message: FromStream) -> None:
        """Handles the report of a process about a stream that it runs."""
        stream = self._streams[message.stream]
        match message:
            case Closed():
                stream.closes.popleft()
                if not stream.closes and not stream.open:
                    self._forget(message.stream)
            case Failed() if stream.closes:
                return  # Closed follows
            case Failed(cause="worker"):
                stream.failure = message  # `lose` reports it once the process has a successor
                return
            case Failed():
                self._forget(message.stream)
            case Sealed(number=number):
                paths = stream.closes[0] if stream.closes else stream.paths
                paths.pop(number, None)
        self.report(message)

    def lose(self, process: SamplerProcess, reason: str, *, blame: bool, passing: bool) -> None:
        """Fails all streams of a dead process. Idempotent. `blame`: the unit in work may have killed the
        process. Then the failures of all other streams are `passing`, because those streams did not cause
        the death."""
        lost = {name: self._streams[name] for name in sorted(process.streams)}
        units = {name: process.unit_of(name) if blame else None for name in lost}
        has_culprit = any(unit is not None for unit in units.values())
        for name, stream in lost.items():
            stream.discard()
            self._forget(name)
        for name, stream in lost.items():
            for _ in stream.closes:
                self.report(Closed(name))
            if stream.open:
                unit = units[name]
                is_passing = passing or (has_culprit and unit is None)
                failure = Failed(name, "worker", reason, unit=unit, passing=is_passing)
                self.report(stream.failure or failure)

    def fail_waiting(self, reason: str) -> None:
        """Fails all streams that wait for a process."""
        for name, stream in list(self._streams.items()):
            if stream.process is None:
                del self._streams[name]
                self.report(Failed(name, "worker", reason))

    def _forget(self, name: StreamId) -> None:
        process = self._streams.pop(name).process
        if process is not None:
            process.streams.discard(name)
