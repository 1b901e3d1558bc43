"""Batches on their way to a device while those before them are used."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from cachecd_client._core import BatchReader

Source: TypeAlias = "BatchReader | Ahead"


class Lane(Protocol):
    """A way to a device, on which batches travel one behind the other."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch, and returns without waiting what `receive` takes for it."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """The batch, for use behind all that the caller has begun on the device."""


Figures = tuple[int, int, float]  # a source's position, bytes_read and queue_filled


class Ahead(ABC):
    """Takes batches from a source before it hands them out, and has the figures of those handed out: as
    BatchReader's."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._closed = False
        self._count(figures_of(source))
        self._answered = self._waited = 0.0

    @property
    def seconds_waited(self) -> float:
        return self._source.seconds_waited + self._waited

    @property
    def seconds_idle(self) -> float:
        return time.monotonic() - self._answered if self._answered else 0.0

    def close(self) -> None:
        """Hands out no batch more, also not those that are under way."""
        self._closed = True

    def _count(self, figures: Figures) -> None:
        """Counts the batch after which the source had these."""
        self.position, self.bytes_read, self.queue_filled = figures
        self._answered = time.monotonic()

    @abstractmethod
    def __iter__(self) -> Iterator[dict[str, Any]]: ...


def figures_of(source: Source) -> Figures:
    return source.position, source.bytes_read, source.queue_filled


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
                following = self._lane.send(next(batches)), figures_of(self._source)
            except Exception as error:  # StopIteration too
                end = error
            if under_way is not None and not self._closed:
                batch = self._lane.receive(under_way[0])
                self._count(under_way[1])
                under_way = None
                yield batch
                del batch  # or it would stay while two others come
            under_way = following
        self._answered = time.monotonic()
        try:
            if self._closed:
                raise RuntimeError("closed")
            if not isinstance(end, StopIteration):
                raise end
        finally:
            del end  # whose traceback holds this frame
