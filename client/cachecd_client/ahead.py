"""Batches on their way to a device while those before them are used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cachecd_client._core import BatchReader


class Lane(Protocol):
    """A way to a device, on which batches travel one behind the other."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch, and returns without waiting what `receive` takes for it."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """The batch, for use behind all that the caller has begun on the device."""


class OneAhead:
    """The batches of a reader's pass over a lane, each sent before the one before is handed out.

    What a batch raises, or sending it, is raised when its turn comes, after those before it; but
    what is no Exception (KeyboardInterrupt) leaves at once, and so does the pass once it is closed.
    """

    def __init__(self, reader: BatchReader, lane: Lane) -> None:
        self._reader = reader
        self._lane = lane
        self._closed = False
        #: As the reader's, of the batches that were handed out.
        self.position = reader.position
        self.bytes_read = 0
        self.queue_filled = 0.0
        self._answered = 0.0

    @property
    def seconds_idle(self) -> float:
        """As the reader's: since a batch was handed out, or none was left."""
        return time.monotonic() - self._answered if self._answered else 0.0

    @property
    def seconds_waited(self) -> float:
        """As the reader's."""
        return self._reader.seconds_waited

    def close(self) -> None:
        """Hands out no batch more, also not the one that is under way."""
        self._closed = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._reader)
        reader = self._reader
        under_way: tuple[Any, tuple[int, int, float]] | None = None
        end: Exception | None = None
        while end is None:
            following = None
            try:
                following = (
                    self._lane.send(next(batches)),
                    (reader.position, reader.bytes_read, reader.queue_filled),
                )
            except Exception as error:  # StopIteration too
                end = error
            if under_way is not None and not self._closed:
                batch = self._lane.receive(under_way[0])
                self.position, self.bytes_read, self.queue_filled = under_way[1]
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
