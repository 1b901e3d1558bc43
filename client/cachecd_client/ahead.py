"""Batches on their way to a device while those before them are used."""

from __future__ import annotations

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
        #: The reader's position as of the batch that was handed out last.
        self.position = reader.position

    def close(self) -> None:
        """Hands out no batch more, also not the one that is under way."""
        self._closed = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._reader)
        under_way: tuple[Any, int] | None = None
        end: Exception | None = None
        while end is None:
            following = None
            try:
                following = self._lane.send(next(batches)), self._reader.position
            except Exception as error:  # StopIteration too
                end = error
            if under_way is not None and not self._closed:
                batch = self._lane.receive(under_way[0])
                self.position = under_way[1]
                under_way = None
                yield batch
                del batch  # or it would stay while two others come
            under_way = following
        try:
            if not isinstance(end, StopIteration):
                raise end
        finally:
            del end  # whose traceback holds this frame
