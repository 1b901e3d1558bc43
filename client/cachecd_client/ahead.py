"""Batches on their way to a device while those before them are used."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
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
    """Takes batches from a source ahead of the loop. Its figures count the batches handed out, as
    BatchReader's do.

    If making a batch raises an Exception, it is raised after the batches before that one. Any other
    exception (KeyboardInterrupt) is raised at once. A closed pass ends at once.
    """

    def __init__(self, source: Source, most: int) -> None:
        """`most`: batches that are under way when the oldest of them is handed out."""
        self._source = source
        self._most = most
        self._pending: deque[tuple[Any, Figures]] = deque()
        self._process = os.getpid()
        self._closed = False
        self.position, self.bytes_read, self.queue_filled = self._figures()
        self._answered = self._waited = 0.0

    @property
    def seconds_waited(self) -> float:
        return self._source.seconds_waited + self._waited

    @property
    def seconds_idle(self) -> float:
        return time.monotonic() - self._answered if self._answered else 0.0

    def close(self) -> None:
        """Ends the pass. Batches that are under way are dropped."""
        self._closed = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._source)
        end: Exception | None = None
        while not self._closed:
            while end is None and len(self._pending) < self._most:
                number = self._source.position
                try:
                    self._pending.append((self._send(next(batches), number), self._figures()))
                except Exception as error:  # StopIteration too
                    end = error
            if not self._pending:
                break
            yield self._next()  # in no variable, or it would stay while others come
        self._answered = time.monotonic()
        try:
            if self._closed:
                raise RuntimeError("closed")
            if end is not None and not isinstance(end, StopIteration):
                raise end
        finally:
            del end  # whose traceback holds this frame

    def _next(self) -> dict[str, Any]:
        sent, figures = self._pending.popleft()
        if os.getpid() != self._process:
            raise RuntimeError("the batches under way are those of the process before the fork")
        batch = self._receive(sent)
        self.position, self.bytes_read, self.queue_filled = figures
        self._answered = time.monotonic()
        return batch

    def _figures(self) -> Figures:
        return self._source.position, self._source.bytes_read, self._source.queue_filled

    @abstractmethod
    def _send(self, batch: dict[str, Any], number: int) -> Any:
        """Sends the batch of this number on its way; returns what `_receive` takes for it."""

    @abstractmethod
    def _receive(self, sent: Any) -> dict[str, Any]:
        """The batch, at its turn."""


class OneAhead(Ahead):
    """The batches of a pass through a lane. A batch is sent before the previous one is handed out."""

    def __init__(self, source: Source, lane: Lane) -> None:
        super().__init__(source, 2)
        self._lane = lane

    def _send(self, batch: dict[str, Any], number: int) -> Any:
        return self._lane.send(batch)

    def _receive(self, sent: Any) -> dict[str, Any]:
        return self._lane.receive(sent)
