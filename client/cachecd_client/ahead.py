"""Batches on their way to a device while those before them are used."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Lane(Protocol):
    """A way to a device, on which batches travel one behind the other."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch, and returns without waiting what `receive` takes for it."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """The batch, for use behind all that the caller has begun on the device."""


class Source(Protocol):
    """The batches of one pass, and figures of those that it handed out: see BatchReader."""

    @property
    def position(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def queue_filled(self) -> float: ...
    @property
    def seconds_waited(self) -> float: ...
    @property
    def seconds_idle(self) -> float: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...


class Figures(NamedTuple):
    """A source's, after one of its batches."""

    position: int
    bytes_read: int
    queue_filled: float

    @staticmethod
    def of(source: Source) -> Figures:
        return Figures(source.position, source.bytes_read, source.queue_filled)


class Ahead(ABC):
    """Takes batches from a source before it hands them out, and has the figures of those handed out."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._figures = Figures.of(source)
        self._closed = False
        self._answered = 0.0

    @property
    def position(self) -> int:
        return self._figures.position

    @property
    def bytes_read(self) -> int:
        return self._figures.bytes_read

    @property
    def queue_filled(self) -> float:
        return self._figures.queue_filled

    @property
    def seconds_waited(self) -> float:
        return self._source.seconds_waited

    @property
    def seconds_idle(self) -> float:
        """Since a batch was handed out, or none was left."""
        return time.monotonic() - self._answered if self._answered else 0.0

    @abstractmethod
    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def close(self) -> None:
        """Hands out no batch more, also not those that are under way."""
        self._closed = True


class OneAhead(Ahead):
    """The batches of a pass over a lane, each sent before the one before is handed out.

    What a batch raises, or sending it, is raised when its turn comes, after those before it; but
    what is no Exception (KeyboardInterrupt) leaves at once, and so does the pass once it is closed.
    """

    def __init__(self, source: Source, lane: Lane) -> None:
        super().__init__(source)
        self._lane = lane

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._source)
        under_way: tuple[Any, Figures] | None = None
        end: Exception | None = None
        while end is None:
            following = None
            try:
                following = self._lane.send(next(batches)), Figures.of(self._source)
            except Exception as error:  # StopIteration too
                end = error
            if under_way is not None and not self._closed:
                batch = self._lane.receive(under_way[0])
                self._figures = under_way[1]
                self._answered = time.monotonic()
                under_way = None
                yield batch
                del batch  # or it would stay while two others come
            under_way = following
        self._answered = time.monotonic()
        try:
            if not isinstance(end, StopIteration):
                raise end
        finally:
            del end  # whose traceback holds this frame
