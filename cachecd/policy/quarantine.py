"""Quarantine of one generation: shards that are damaged or hold an excluded record, and their next
versions. Pure.

No later lease names a quarantined shard. Its next version holds the same records: made again from the
source if it is damaged, or copied without the excluded records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.policy.commands import RemakeShard
from cachecd.policy.pause import Pause


@dataclass(slots=True)
class Work:
    """A number that needs a next version. `local`: a copy will do. `marked`: its mark is durable. `making`:
    the next version is being made, with `reserved` bytes; `retire`: the number is retired after that."""

    local: bool
    marked: bool = False
    making: RemakeShard | None = None
    reserved: int = 0
    retire: bool = False
    pause: Pause = field(default_factory=Pause)


@dataclass(slots=True)
class Quarantine:
    """The work of a generation, by number."""

    work: dict[int, Work] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """Bytes reserved for next versions."""
        return sum(work.reserved for work in self.work.values())

    def adopt(self, number: int, excluded: bool) -> None:
        """A start found a mark `.bad` without a later version."""
        self.work[number] = Work(excluded, marked=True)

    def begin(self, number: int, excluded: bool) -> bool:
        """A shard is damaged, or `excluded`: holds an excluded record. True if a mark is to be written."""
        work = self.work.setdefault(number, Work(excluded))
        also_damaged = work.local and not excluded  # a copy will not do
        work.local = work.local and excluded
        return also_damaged or not work.marked

    def retire_later(self, number: int) -> bool:
        """A shard is to be retired. True if that has to wait until its next version is made."""
        if (work := self.work.get(number)) and work.making:
            work.retire = True
            return True
        self.work.pop(number, None)
        return False
