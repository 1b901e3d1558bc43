"""Quarantine of one generation: shards that are damaged or hold an excluded record, and their next
versions. Pure.

No later lease names a quarantined shard. Its next version holds the same records: made again from the
source if it is damaged, or copied without the excluded records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cachecd.policy.values import Name

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0


@dataclass(slots=True)
class _Work:
    """A number that needs a next version. `local`: a copy will do. `reserved`: bytes, while it is made."""

    local: bool
    marked: bool = False
    making: bool = False
    reserved: int = 0
    dropped: bool = False
    retire: bool = False
    failures: int = 0
    retry_at: float = 0.0


@dataclass(slots=True)
class Quarantine:
    """`work` is by number; `verifying` has the requests that wait for a shard to be read."""

    work: dict[int, _Work] = field(default_factory=dict)
    verifying: dict[Name, list[str]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """Bytes reserved for next versions."""
        return sum(work.reserved for work in self.work.values())

    def adopt(self, number: int, excluded: bool) -> None:
        """A start found a mark `.bad` without a later version."""
        self.work[number] = _Work(excluded, marked=True)

    def begin(self, number: int, excluded: bool) -> bool:
        """A shard is damaged, or `excluded`: holds an excluded record. True if a mark is to be written."""
        work = self.work.get(number)
        if work is None:
            self.work[number] = _Work(excluded)
            return True
        if work.local and not excluded:  # it is damaged too: a copy will not do
            work.local = False
            return True
        return not work.marked

    def waits(self, now: float) -> Iterator[tuple[int, _Work]]:
        """What may be made now, in number order."""
        if self.work:
            for number in sorted(self.work):
                work = self.work[number]
                if work.marked and not work.making and now >= work.retry_at:
                    yield number, work

    def start(self, number: int, reserved: int, dropped: bool) -> None:
        """A next version is begun."""
        work = self.work[number]
        work.making, work.reserved, work.dropped = True, reserved, dropped

    def failed(self, number: int, refused: bool, now: float) -> bool:
        """It could not be made now; unless the disk `refused`, a shard that cannot be copied is damaged.
        True if the shard is to be retired."""
        work = self.work[number]
        work.making, work.reserved, work.local = False, 0, work.local and refused
        pause = min(_FIRST_RETRY * 2 ** min(work.failures, 10), _LONGEST_RETRY)
        work.failures, work.retry_at = work.failures + 1, now + pause
        return work.retire

    def retire_later(self, number: int) -> bool:
        """A shard is to be retired. True if that has to wait until its next version is made."""
        work = self.work.get(number)
        if work is None:
            return False
        if work.making:
            work.retire = True
            return True
        del self.work[number]
        return False
