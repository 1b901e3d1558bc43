"""Which of a dataset's sources give nothing at present, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cachecd.pause import Pause


@dataclass(slots=True)
class MissingSources:
    """By their places: `unlisted` are those whose listing does not get on, with the reason; `away` those of
    several that could not be read, of which nothing is asked for a while."""

    unlisted: dict[int, str] = field(default_factory=dict)
    away: dict[int, Pause] = field(default_factory=dict)

    def reason(self, source: int) -> str:
        """Why nothing comes of it, "" if something may."""
        away = self.away.get(source)
        return (away.reason if away else "") or self.unlisted.get(source, "")

    def reasons(self, sources: int) -> list[str]:
        """Why nothing comes of those of so many of which nothing does."""
        return [why for source in range(sources) if (why := self.reason(source))]

    def read(
        self, tried: Iterable[int], unreachable: Iterable[tuple[int, str]], now: float
    ) -> None:
        """A shard has shown which of the sources that it `tried` cannot be read."""
        why = dict(unreachable)
        for source in tried if self.away or why else ():
            if source in why:
                self.away.setdefault(source, Pause()).begin(now, why[source])
            else:
                self.away.pop(source, None)

    def left_out(self, now: float) -> set[int]:
        """Those of which nothing is to be asked at this time."""
        return {source for source, pause in self.away.items() if pause.stops(now)}

    def any_due(self, now: float) -> bool:
        """Whether one of those that were away is to be tried again."""
        return any(not pause.stops(now) for pause in self.away.values())
