"""Which shard the scrub reads next, and what to make of one that cannot be read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cachecd.model import ShardId

_TRIES = 3


@dataclass(slots=True)
class Rounds:
    """Round and round through all shards: the next is the one that was verified longest ago.

    `start`, in [0, 1), is where in the cache the first round begins. Shards sealed since a round began
    have just been written: they are next after it.
    """

    start: float = 0.0
    verified: int = 0
    """How many shards could be read to their end, sound or not."""
    _order: list[ShardId] = field(default_factory=list)
    _at: int = 0
    _failed: dict[ShardId, _Failed] = field(default_factory=dict)

    @property
    def progress(self) -> float:
        """The share of this round that is done."""
        return self._at / len(self._order) if self._order else 0.0

    @property
    def unreadable(self) -> int:
        """How many shards could not be read when they were tried last."""
        return len(self._failed)

    def next(
        self, shards: Callable[[], Iterable[ShardId]], there: Callable[[ShardId], bool]
    ) -> ShardId | None:
        """The next shard that is still `there`; None if none is. `shards` is asked once a round."""
        for shard, failed in self._failed.items():
            if self.verified > failed.verified and there(shard):
                return shard
        for _ in range(2):
            while self._at < len(self._order):
                self._at += 1
                if there(self._order[self._at - 1]):
                    return self._order[self._at - 1]
            self._begin(set(shards()))
        return None

    def _begin(self, shards: set[ShardId]) -> None:
        first = not self._order
        known = [shard for shard in self._order if shard in shards]
        self._order = known + sorted(shards.difference(known))
        self._at = 0
        self._failed = {s: failed for s, failed in self._failed.items() if s in shards}
        if first:
            at = int(self.start * len(self._order))
            self._order = self._order[at:] + self._order[:at]

    def was_read(self, shard: ShardId) -> None:
        """It could be read to its end."""
        self.verified += 1
        self._failed.pop(shard, None)

    def could_not_be_read(self, shard: ShardId) -> bool:
        """Whether it is the shard that is lost, and not the disk that fails for now.

        It is once three tries have failed, each of them but the first after another shard had been
        read: when nothing can be read, nothing is given up. It is tried again after that other one.
        """
        failed = self._failed.setdefault(shard, _Failed())
        if failed.tries == 0 or self.verified > failed.verified:
            failed.tries += 1
            failed.verified = self.verified
        if failed.tries < _TRIES:
            return False
        del self._failed[shard]
        return True


@dataclass(slots=True)
class _Failed:
    """A shard's tries so far, and how many shards had been read when the last was counted."""

    tries: int = 0
    verified: int = 0
